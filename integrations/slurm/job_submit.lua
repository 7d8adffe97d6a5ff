-- Look at a batch script when it is submitted: for `JobSubmitPlugins=lua`, or to take into a job_submit.lua that is there.
--
-- slurmctld waits for this function and does nothing else meanwhile. So it only lints, which reads one text and runs
-- nothing, with a deadline that `timeout` keeps; nodes are looked at elsewhere. With MODE = "spool" it does not even
-- that: it puts the script into a folder, for a service that lints what it finds there.
--
--   "tell"    the user sees the report, and the job is submitted
--   "refuse"  the user sees the report, and an error in it refuses the job
--   "spool"   the script is put into SPOOL; nothing is started
--
-- Whatever goes wrong here (no preflight, too slow, no room), the job is submitted.

local MODE = os.getenv("PREFLIGHT_SUBMIT_MODE") or "tell"
local PREFLIGHT = os.getenv("PREFLIGHT_SUBMIT_COMMAND") or "/opt/preflight/bin/preflight"
local SPOOL = os.getenv("PREFLIGHT_SUBMIT_SPOOL") or "/var/spool/preflight"
local DEADLINE_S = 2
-- A script that is larger than this is not looked at.
local LARGEST = 256 * 1024
local NO_GO = 1

local count = 0

-- A new file with this text below SPOOL, where only slurmctld may write; its path, or nil.
local function put(text)
    count = count + 1
    local path = string.format("%s/%d-%d.sbatch", SPOOL, os.time(), count)
    -- Under another name first, so that nobody reads half of it.
    local file = io.open(path .. ".part", "w")
    if file == nil then return nil end
    local written = file:write(text)
    file:close()
    if not written or not os.rename(path .. ".part", path) then return nil end
    return path
end

-- The report about a file, and preflight's exit code; nil where it did not come in time.
local function lint(path)
    -- Nothing of the user's stands in this line: the path is ours.
    local line = string.format(
        "timeout --kill-after=1 %d '%s' lint --quiet --no-color --no-config --no-cache -- '%s' 2>&1 </dev/null; echo \"ended $?\"",
        DEADLINE_S, PREFLIGHT, path)
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
    -- The user does not know the name that the file has here.
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
