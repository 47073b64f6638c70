-- One commit, whole: see script.py for what the arguments are, and why nothing may fail after the first write.
local argument, key = 0, 0
local function take() argument = argument + 1; return ARGV[argument] end
local function count() return tonumber(take()) end
local function take_key() key = key + 1; return KEYS[key] end
local null, only_try = take(), take()

local HOLDS = {
  HSET = 'hash', HSETNX = 'hash', HDEL = 'hash', HINCRBY = 'hash', RPUSH = 'list', SADD = 'set',
  ZADD = 'zset', ZREMRANGEBYSCORE = 'zset', ZREMRANGEBYRANK = 'zset',
}
-- What else a handler may call: its right to do so is looked at only if it does.
local HANDLER = {SET = 'string', INCRBY = 'string', SREM = 'set', ZREM = 'zset', DEL = 'anything'}
local OTHERS = {'HGET', 'HMGET', 'HGETALL', 'TYPE', 'EXISTS', 'GET', 'SET', 'DEL'}

-- Of two texts, which comes first by its bytes: the server's locale must not decide.
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = a:byte(i), b:byte(i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

local function less(a, b)
  local sign_a, whole_a, part_a = a:match('^(%-?)0*(%d*)%.?(%d*)$')
  local sign_b, whole_b, part_b = b:match('^(%-?)0*(%d*)%.?(%d*)$')
  if whole_a and whole_b then
    -- Digit by digit: a Lua number would round beyond 2^53.
    local scale = math.max(#part_a, #part_b)
    part_a, part_b = part_a .. ('0'):rep(scale - #part_a), part_b .. ('0'):rep(scale - #part_b)
    if sign_a ~= sign_b then return sign_a == '-' end
    if sign_a == '-' then whole_a, part_a, whole_b, part_b = whole_b, part_b, whole_a, part_a end
    if #whole_a ~= #whole_b then return #whole_a < #whole_b end
    return before(whole_a .. part_a, whole_b .. part_b)
  end
  local x, y = tonumber(a), tonumber(b)
  if x and y then return x < y end
  return before(a, b)
end

-- The exact sum of two decimal numbers, digit by digit. Nil if one of them is no such number.
local function plus(a, b)
  local sign_a, whole_a, part_a = a:match('^(%-?)(%d+)%.?(%d*)$')
  local sign_b, whole_b, part_b = b:match('^(%-?)(%d+)%.?(%d*)$')
  if not sign_a or not sign_b then return nil end
  local scale, width = math.max(#part_a, #part_b), math.max(#whole_a, #whole_b)
  local x = ('0'):rep(width - #whole_a) .. whole_a .. part_a .. ('0'):rep(scale - #part_a)
  local y = ('0'):rep(width - #whole_b) .. whole_b .. part_b .. ('0'):rep(scale - #part_b)
  local sign, same = sign_a, sign_a == sign_b
  if not same and before(x, y) then x, y, sign = y, x, sign_b end
  local digits, carry = {}, 0
  for i = #x, 1, -1 do
    local digit = x:byte(i) - 48 + (same and y:byte(i) - 48 or 48 - y:byte(i)) + carry
    carry = math.floor(digit / 10)
    digits[i] = digit - carry * 10
  end
  local text = (carry > 0 and carry or '') .. table.concat(digits)
  local whole, part = text:sub(1, #text - scale):gsub('^0+(%d)', '%1'), text:sub(#text - scale + 1)
  if not text:match('[1-9]') then sign = '' end
  return sign .. whole .. (scale > 0 and '.' .. part or '')
end

-- A floating-point number in as few digits as give the same number again.
local function shortest(number)
  if number ~= number or number - number ~= 0 then return nil end
  for digits = 15, 17 do
    local text = ('%.' .. digits .. 'g'):format(number)
    if tonumber(text) == number then return text:match('^%-?%d+$') and text .. '.0' or text end
  end
end

local function total(old, new, how)
  if how.kind == 'float' then
    local x, y = tonumber(old), tonumber(new)
    return x and y and shortest(x + y)
  end
  local sum = plus(old, new)
  if not sum or less(sum, how.least) or less(how.most, sum) then return nil end
  return sum
end

local function goes_before(a, b, kind)
  if kind == 'text' then return before(a, b) end
  return less(a, b)
end

-- The places of the commas between the elements of a JSON array, and of its brackets. Nil if the text is no array.
local function commas(text)
  local blank = ' \t\n\r'
  local first = text:find('[^' .. blank .. ']')
  if not first or text:byte(first) ~= 91 then return nil end
  local at, depth, places = first, 0, {}
  while at do
    local mark = text:byte(at)
    if mark == 34 then
      repeat
        at = text:find('["\\]', at + 1)
        local escapes = at and text:byte(at) == 92
        if escapes then at = at + 1 end
      until not escapes
      if not at then return nil end
    elseif mark == 91 or mark == 123 then
      depth = depth + 1
    elseif mark == 44 then
      if depth == 1 then places[#places + 1] = at end
    else
      depth = depth - 1
      if depth == 0 then return mark == 93 and not text:find('[^' .. blank .. ']', at + 1) and places, first, at end
    end
    at = text:find('["%[%]{},]', at + 1)
  end
end

-- Two JSON arrays as one, of which the last elements stay. Nil if one of them is no array.
local function appended(old, new, most)
  local places, first, last = commas(old)
  local others, start, stop = commas(new)
  if not places or not others then return nil end
  local before, after = old:sub(first + 1, last - 1), new:sub(start + 1, stop - 1)
  if not before:find('%S') then return new end
  local dropped = #places + 1 - most
  if after:find('%S') then dropped, after = dropped + #others + 1, ',' .. after end
  if dropped > #places then return new end
  if dropped > 0 then before = old:sub(places[dropped] + 1, last - 1) end
  return '[' .. before .. after .. ']'
end

-- The value of a column after a row has been merged: a text, or false for NULL. Nil if that can't be done.
local function merge(how, old, new, old_version, new_version, versions)
  if how.name == 'count' then return total(old or '0', new or '0', how) end
  if how.name == 'first' then return old or new end
  if how.name == 'newest' or how.name == 'oldest' then
    if not versions then
      if how.name == 'newest' then return new end
      return old
    end
    local replaces = how.name == 'newest'
    if old_version and new_version then
      replaces = goes_before(new_version, old_version, versions) == (how.name == 'oldest')
    elseif old_version or new_version then
      replaces = not old_version
    end
    if replaces then return new end
    return old
  end
  if not old or not new then return old or new end
  if how.name == 'sum' then return total(old, new, how) end
  if how.name == 'append' then return appended(old, new, tonumber(how.most)) end
  local earlier
  if how.name == 'min' then earlier = goes_before(new, old, how.kind) else earlier = goes_before(old, new, how.kind) end
  if earlier then return new end
  return old
end

-- 1. What has to hold: key, field, value.
for _ = 1, count() do
  local name, field, value = take_key(), take(), take()
  if (redis.call('HGET', name, field) or '') ~= value then return {'moved', name, field} end
end

-- 2. What could fail: keys of another type, and commands that this user may not call.
local tables, wrong = {}, {}
for _ = 1, count() do
  local rows = {write = take(), kind = take(), version = count(), compare = take(), where = take(), start = take()}
  rows.names, rows.merge = {}, {}
  for i = 1, count() do rows.names[i] = take() end
  for i = 1, count() do rows.merge[i] = {name = take(), kind = take(), least = take(), most = take()} end
  rows.time = take()
  rows.deletions = count() > 0 and take_key()
  if rows.deletions then
    local found = redis.call('TYPE', rows.deletions).ok
    if found ~= 'none' and found ~= 'hash' then return {'broken', rows.deletions, found} end
  end
  rows.count = count()
  rows.key, rows.argument = key, argument
  for i = 1, rows.count do
    local found = redis.call('TYPE', take_key()).ok
    if found ~= 'none' and found ~= rows.kind then wrong[#wrong + 1] = {#tables, i - 1, KEYS[key], found} end
  end
  argument = argument + rows.count * #rows.names
  tables[#tables + 1] = rows
end

-- Merged rows by key, computed before anything is written, because a stored value may not be what it should be.
local merged = {}
local function merge_row(rows, name, at)
  local there = merged[name]
  if not there and redis.call('EXISTS', name) == 1 then
    there = {}
    for i, value in ipairs(redis.call('HMGET', name, unpack(rows.names))) do there[rows.names[i]] = value end
  end
  local version = rows.version > 0 and rows.names[rows.version]
  local versions = version and (rows.compare == 'number' and 'number' or 'text')
  local function given(i)
    local value = ARGV[at + i]
    return value ~= null and value
  end
  local after = {}
  for i, field in ipairs(rows.names) do
    local how = rows.merge[i]
    if how.name == '' or not there then
      after[field] = given(i) or how.name == 'count' and '0'
    else
      local old_version, new_version = version and there[version], version and given(rows.version)
      after[field] = merge(how, there[field], given(i), old_version, new_version, versions)
      if after[field] == nil then return how.name .. ' ' .. field end
    end
  end
  merged[name] = after
end
for number, rows in ipairs(tables) do
  for i = 1, rows.write == 'merge' and #wrong == 0 and rows.count or 0 do
    local name = KEYS[rows.key + i]
    local field = merge_row(rows, name, rows.argument + (i - 1) * #rows.names)
    if field then wrong[#wrong + 1] = {number - 1, i - 1, name, '!' .. field} end
  end
end
if #wrong > 0 then return {'wrong', wrong} end

local commands, called = {}, {}
for _ = 1, count() do
  local command = {}
  for i = 1, count() do command[i] = take() end
  local name = take_key()
  local found, holds = redis.call('TYPE', name).ok, HOLDS[command[1]] or HANDLER[command[1]]
  if found ~= 'none' and found ~= holds and holds ~= 'anything' then return {'broken', name, found} end
  if command[1] == 'HINCRBY' or command[1] == 'INCRBY' then
    local field = command[1] == 'HINCRBY' and command[2]
    local number = (field and redis.call('HGET', name, field) or not field and redis.call('GET', name)) or '0'
    -- As strict as the server, which takes no zeros in front.
    local whole = #number <= 18 and (number == '0' or number:match('^%-?[1-9]%d*$'))
    if not whole then return {'broken', name, found .. ' without a number' .. (field and ' in ' .. field or '')} end
  end
  if HANDLER[command[1]] then called[command[1]] = true end
  table.insert(command, 2, name)
  commands[#commands + 1] = command
end

if redis.acl_check_cmd and #tables + #commands > 0 then
  for command in pairs(HOLDS) do
    if not redis.acl_check_cmd(command, KEYS[1]) then return {'denied', command} end
  end
  for command in pairs(called) do
    if not redis.acl_check_cmd(command, KEYS[1]) then return {'denied', command} end
  end
  for _, command in ipairs(OTHERS) do
    if not redis.acl_check_cmd(command, KEYS[1]) then return {'denied', command} end
  end
end

if only_try == '1' then return {'done', {}} end

-- The version of the row that is there. Ours is the first member of the object; others may have written another.
local function stored(rows, name)
  if rows.kind == 'hash' then return redis.call('HGET', name, rows.where) end
  local text = redis.call('GET', name)
  if not text then return false end
  local at = #rows.start + 1
  if text:sub(1, at - 1) == rows.start then
    local plain = text:match('^"([^"\\]*)"', at) or text:match('^(%-?[%d.]+)[,}]', at)
    if plain then return plain end
  end
  local fine, object = pcall(cjson.decode, text)
  local found = fine and type(object) == 'table' and object[rows.where]
  local kind = type(found)
  return (kind == 'string' or kind == 'number' or found == true) and tostring(found)
end

-- Whether a row without a version, or with this one, is older than this version.
local function is_older(rows, new, version)
  if new == null then return true end
  if rows.compare == 'number' then return less(new, version) end
  return before(new, version)
end

-- The version of the remembered deletion of a row.
local function deleted(rows, name)
  local found = rows.deletions and redis.call('HGET', rows.deletions, name)
  return found and found:match('^%d+:(.*)$')
end

local function remember(rows, name, new)
  local version = deleted(rows, name)
  if new == null then
    if version then redis.call('HDEL', rows.deletions, name) end
  elseif not (version and is_older(rows, new, version)) then
    redis.call('HSET', rows.deletions, name, rows.time .. ':' .. new)
  end
end

local function stays(rows, name, at)
  if rows.write == 'ignore' then return redis.call('EXISTS', name) == 1 end
  if rows.version == 0 or rows.write == 'merge' then return false end
  local new = ARGV[at + rows.version]
  -- A deletion without a version deletes any version.
  if rows.write == 'delete' and new == null then return false end
  local old, gone = stored(rows, name), rows.write ~= 'delete' and deleted(rows, name)
  return (old and is_older(rows, new, old)) or (gone and is_older(rows, new, gone))
end

local function put_hash(rows, name, at)
  local put, gone = {}, {}
  for i = 1, #rows.names do
    local value = ARGV[at + i]
    if rows.write == 'merge' then value = merged[name][rows.names[i]] or null end
    if value == null then
      gone[#gone + 1] = rows.names[i]
    else
      put[#put + 1] = rows.names[i]
      put[#put + 1] = value
    end
  end
  if #put > 0 then redis.call('HSET', name, unpack(put)) end
  if #gone > 0 then redis.call('HDEL', name, unpack(gone)) end
end

-- 3. The rows.
for _, rows in ipairs(tables) do
  for i = 1, rows.count do
    local name, at = KEYS[rows.key + i], rows.argument + (i - 1) * #rows.names
    if rows.write == 'delete' and rows.deletions then remember(rows, name, ARGV[at + rows.version]) end
    if not stays(rows, name, at) then
      if rows.write == 'delete' then
        redis.call('DEL', name)
      elseif rows.kind == 'hash' then
        put_hash(rows, name, at)
      else
        redis.call('SET', name, ARGV[at + 1])
      end
    end
  end
end

-- 4. The ledger, and then how it reads.
for _, command in ipairs(commands) do redis.call(unpack(command)) end
local found = {}
for i = 1, count() do found[i] = redis.call('HGETALL', take_key()) end
return {'done', found}
