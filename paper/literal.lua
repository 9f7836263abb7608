-- What pandoc's writers leave as it is, and LaTeX and typst would read as typography or as markup.
local literal = {
  latex = { ["`"] = "\\textasciigrave{}" },
  typst = { ["..."] = "\\.\\.\\.", ["--"] = "\\-\\-", ["-?"] = "-\\?" },
}

local function first_of(text, from)
  local first, read, written
  for key, value in pairs(literal[FORMAT] or {}) do
    local at = text:find(key, from, true)
    if at and (not first or at < first) then
      first, read, written = at, key, value
    end
  end
  return first, read, written
end

function Str(one)
  local parts, from = pandoc.Inlines({}), 1
  local at, read, written = first_of(one.text, from)
  while at do
    parts:insert(pandoc.Str(one.text:sub(from, at - 1)))
    parts:insert(pandoc.RawInline(FORMAT, written))
    from = at + #read
    at, read, written = first_of(one.text, from)
  end
  parts:insert(pandoc.Str(one.text:sub(from)))
  return parts
end

-- The text that stands for what cannot be read aloud; PDF/UA asks for it, and pandoc writes none.
local function quoted(text)
  return '"' .. text:gsub('[\\"]', "\\%0"):gsub("%s+", " ") .. '"'
end

function Image(one)
  if FORMAT ~= "typst" then
    return nil
  end
  local text = pandoc.utils.stringify(one.caption)
  local suffix = one.src:match("%.%w+$") and "" or ".svg"
  local call = "#image(%s, alt: %s)"
  return pandoc.RawInline("typst", call:format(quoted(one.src .. suffix), quoted(text)))
end

function Math(one)
  if FORMAT ~= "typst" then
    return nil
  end
  local begin = pandoc.RawInline("typst", "#[#set math.equation(alt: " .. quoted(one.text) .. ");")
  return { begin, one, pandoc.RawInline("typst", "]") }
end

-- A sentence that announces a command stays on its page.
function Blocks(all)
  if FORMAT ~= "typst" then
    return nil
  end
  local kept = pandoc.Blocks({})
  for place, one in ipairs(all) do
    local before = place > 1 and all[place - 1].t == "Para"
    local after = all[place + 1] and all[place + 1].t == "CodeBlock"
    if one.t == "Para" and after then
      kept:insert(pandoc.RawBlock("typst", "#block(breakable: false)["))
    end
    kept:insert(one)
    if one.t == "CodeBlock" and before then
      kept:insert(pandoc.RawBlock("typst", "]"))
    end
  end
  return kept
end

-- The start of a cell, where typst would begin a list or a heading.
function Plain(one)
  local first = one.content[1]
  if FORMAT ~= "typst" or not first or first.t ~= "Str" then
    return nil
  end
  -- A sign before digits is a number's.
  local mark = not first.text:match("^[-+]%d") and first.text:match("^[-+=/]")
  local number = first.text:match("^(%d+)%.$")
  if mark or number then
    one.content[1] = pandoc.Str(first.text:sub(mark and 2 or #number + 2))
    one.content:insert(1, pandoc.RawInline(FORMAT, mark and "\\" .. mark or number .. "\\."))
  end
  return one
end

-- Width of the text, of a letter in a table and of a cell's two insets, in points (template.typ).
local LINE, LETTER, INSETS = 459, 3.5, 6

local function points(letters)
  return letters * LETTER + INSETS
end

-- Points of each column with its head in one line, with its head at words, and of its longest word.
local function widths(one)
  local whole, least, words = {}, {}, {}
  local function measure(row, is_head)
    for place, cell in ipairs(row.cells) do
      local text, longest = pandoc.utils.stringify(cell.contents), 0
      for word in text:gmatch("[^ ]+") do
        longest = math.max(longest, pandoc.text.len(word))
      end
      local letters = pandoc.text.len(text)
      whole[place] = math.max(whole[place] or 0, points(letters))
      least[place] = math.max(least[place] or 0, points(is_head and longest or letters))
      words[place] = math.max(words[place] or 0, points(longest))
    end
  end
  for _, row in ipairs(one.head.rows) do
    measure(row, true)
  end
  for _, body in ipairs(one.bodies) do
    for _, row in ipairs(body.body) do
      measure(row, false)
    end
  end
  return whole, least, words
end

local function sum(numbers)
  local total = 0
  for _, number in ipairs(numbers) do
    total = total + number
  end
  return total
end

-- In a table that is too wide, with one column of words and numbers else, heads wrap, and so do the
-- words where they must. typst would make the widest numbers narrower too, which cannot wrap and
-- would lie over their neighbours.
function Table(one)
  if FORMAT ~= "typst" then
    return nil
  end
  local whole, least, words = widths(one)
  local wrapping = {}
  for place, spec in ipairs(one.colspecs) do
    if spec[1] ~= pandoc.AlignRight then
      table.insert(wrapping, place)
    end
  end
  if #wrapping ~= 1 or sum(whole) <= LINE then
    return nil
  end
  local named = wrapping[1]
  least[named] = math.min(least[named], LINE - (sum(least) - least[named]))
  if least[named] < words[named] then
    return nil
  end
  for place, width in ipairs(least) do
    one.colspecs[place] = { one.colspecs[place][1], width / LINE }
  end
  return one
end
