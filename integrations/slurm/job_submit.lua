-- Lints a batch script at submission: for `JobSubmitPlugins=lua`, or to include in an existing job_submit.lua.
--
-- slurmctld waits for this function and does nothing else meanwhile. So it only lints, which reads one text and runs
-- nothing, under a deadline of `timeout`; nodes are not checked here. With MODE = "spool" it only stores the script in
-- a folder, for a service that lints it.
--
--   "tell"    the user sees the report, and the job is submitted
--   "refuse"  the user sees the report, and an error in it rejects the job
--   "spool"   the script is put into SPOOL; nothing is started
--
-- If anything fails here (no preflight, too slow, no space), the job is submitted.

local MODE = os.getenv("PREFLIGHT_SUBMIT_MODE") or "tell"
local PREFLIGHT = os.getenv("PREFLIGHT_SUBMIT_COMMAND") or "/opt/preflight/bin/preflight"
local SPOOL = os.getenv("PREFLIGHT_SUBMIT_SPOOL") or "/var/spool/preflight"
local DEADLINE_S = 2
-- Larger scripts are not linted.
local LARGEST = 256 * 1024
local NO_GO = 1

-- 16 random bytes in hex; nil if the system has none.
local function random()
    local source = io.open("/dev/urandom", "rb")
    if source == nil then return nil end
    local bytes = source:read(16)
    source:close()
    if bytes == nil or #bytes ~= 16 then return nil end
    return (bytes:gsub(".", function(byte) return string.format("%02x", byte:byte()) end))
end

-- A new file with this text below SPOOL, where only slurmctld may write; its path, or nil. Lua cannot open a file only
-- if it is new, so its name must be unpredictable, or a link could be placed there.
local function put(text)
    local name = random()
    if name == nil then return nil end
    local path = string.format("%s/%d-%s.sbatch", SPOOL, os.time(), name)
    -- Under another name first, so that no reader sees an incomplete file.
    local file = io.open(path .. ".part", "w")
    if file == nil then return nil end
    local written = file:write(text)
    file:close()
    if not written or not os.rename(path .. ".part", path) then return nil end
    return path
end

-- The report on a file, and preflight's exit code; nil if it is not ready in time.
local function lint(path)
    -- This line contains no user data: the path is ours.
    -- Isolated from slurmctld's own directory and variables, and reading no file outside SPOOL.
    local line = string.format(
        "cd / && unset PYTHONPATH PYTHONSTARTUP PYTHONHOME && PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1 "
            .. "timeout --kill-after=1 %d '%s' lint --root '%s' --quiet --no-color --no-config --no-cache -- '%s' "
            .. "2>&1 </dev/null; echo \"ended $?\"",
        DEADLINE_S, PREFLIGHT, SPOOL, path)
    local pipe = io.popen(line)
    if pipe == nil then return nil end
    local said = pipe:read("*a") or ""
    pipe:close()
    local report, code = said:match("^(.-)ended (%d+)%s*$")
    return report, tonumber(code)
end

local function look(script)
    if type(script) ~= "string" or script == "" or #script > LARGEST then return slurm.SUCCESS end
    local path = put(script)
    if path == nil or MODE == "spool" then return slurm.SUCCESS end
    local report, code = lint(path)
    os.remove(path)
    if report == nil or code ~= NO_GO then return slurm.SUCCESS end
    -- The user does not know the name of the spooled file.
    local name = path:match("[^/]+$"):gsub("%p", "%%%0")
    for line in report:gmatch("[^\n]+") do
        slurm.log_user("%s", (line:gsub(name, "your script")))
    end
    if MODE == "refuse" then return slurm.ERROR end
    return slurm.SUCCESS
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    local ran, answer = pcall(look, job_desc.script)
    if not ran then
        slurm.log_info("preflight: %s", tostring(answer))
        return slurm.SUCCESS
    end
    return answer
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return slurm.SUCCESS
end

return slurm.SUCCESS
