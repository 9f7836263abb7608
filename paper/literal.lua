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
