-- Loadmaster: GPU jobs wait GRACE_S seconds for the steerer, which starts them earlier or puts them
-- off. Where it has ended, they start by Slurm's own rules once that time has passed.
-- Left alone: jobs without GPUs, with a begin time, dependencies, arrays, features or named nodes.
GRACE_S = 120

local function uses_gpus(job)
  for _, field in ipairs({"tres_per_node", "tres_per_task", "tres_per_job", "gres"}) do
    local text = job[field]
    if text ~= nil and (string.find(text, "gpu") or string.find(text, "shard")) then return true end
  end
  return false
end

local function is_empty(text) return text == nil or text == "" end

function slurm_job_submit(job, partition, uid)
  if job.begin_time == 0 and uses_gpus(job) and is_empty(job.dependency)
      and is_empty(job.array_inx) and is_empty(job.features) and is_empty(job.req_nodes)
      and is_empty(job.exc_nodes) and is_empty(job.admin_comment) then
    job.begin_time = os.time() + GRACE_S
    job.admin_comment = "loadmaster"
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partition, uid) return slurm.SUCCESS end

return slurm.SUCCESS
