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
