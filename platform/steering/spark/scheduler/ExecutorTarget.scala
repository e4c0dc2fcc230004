package org.apache.spark.scheduler.loadmaster

import _root_.loadmaster.spark.ExecutorCount
import org.apache.spark.SparkContext
import org.apache.spark.scheduler.{ExecutorDecommissionInfo, TaskSchedulerImpl}
import org.apache.spark.scheduler.cluster.StandaloneSchedulerBackend

/** Brings the number of executors of an application on a standalone cluster to a target.
  *
  * Up by a request to the master. Down by decommissioning: such executors get no new tasks, and end
  * after those that run. Without a target the request has no bound, which is how an application
  * begins. A daemon thread of its own, as a request waits for the master.
  */
private[loadmaster] final class ExecutorTarget(
    context: SparkContext, scheduler: TaskSchedulerImpl, target: () => Option[ExecutorCount]) {
  import ExecutorTarget._

  private var requested = Int.MaxValue

  def start(): Unit = {
    val thread = new Thread(() => run(), "loadmaster-executors")
    thread.setDaemon(true)
    thread.start()
  }

  private def run(): Unit = while (!context.isStopped) {
    try scheduler.backend match {
      case backend: StandaloneSchedulerBackend => follow(backend, target())
      case _ =>
    } catch {
      case fault: Exception => if (!context.isStopped) Log.warn("executors were not changed", fault)
    }
    Thread.sleep(PauseMs)
  }

  private def follow(backend: StandaloneSchedulerBackend, target: Option[ExecutorCount]): Unit = {
    val wanted = target.fold(Int.MaxValue)(_.count)
    if (wanted != requested && context.requestTotalExecutors(wanted, 0, Map.empty)) {
      requested = wanted
      Log.info(target.fold("executors: Spark's own number")(one => s"executors: ${one.count}: ${one.reason}"))
    }
    val active = backend.getExecutorIds().filter(backend.isExecutorActive)
    val surplus = active.sortBy(scheduler.isExecutorBusy).take(active.size - wanted) // idle ones first
    if (surplus.nonEmpty) {
      val info = ExecutorDecommissionInfo("fewer executors are decided")
      backend.decommissionExecutors(
        surplus.map(_ -> info).toArray, adjustTargetNumExecutors = false, triggeredByExecutor = false)
    }
  }
}

private[loadmaster] object ExecutorTarget {
  private val Log = org.slf4j.LoggerFactory.getLogger("loadmaster.spark")
  private val PauseMs = 200L

  /** Cores of an executor, where its number can be set; else 0. */
  def coresOf(context: SparkContext): Int = {
    val conf = context.getConf
    val settable = context.master.startsWith("spark-loadmaster://") &&
      conf.getBoolean("spark.decommission.enabled", false) &&
      !conf.getBoolean("spark.dynamicAllocation.enabled", false)
    if (settable) conf.getInt("spark.executor.cores", 0) else 0
  }
}
