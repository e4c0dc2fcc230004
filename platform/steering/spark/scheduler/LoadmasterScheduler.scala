// Spark has no public API for the order of stages. This is the interface by which YARN and
// Kubernetes are attached (a ServiceLoader, since 2.0); it is private[spark], hence the package.
package org.apache.spark.scheduler.loadmaster

import _root_.loadmaster.spark.{Plan, Progress, Reporter}
import org.apache.spark.{SPARK_VERSION, SparkContext, SparkException}
import org.apache.spark.scheduler._
import org.apache.spark.scheduler.TaskLocality.TaskLocality
import org.apache.spark.scheduler.cluster.StandaloneSchedulerBackend
import org.apache.spark.scheduler.local.LocalSchedulerBackend
import scala.collection.mutable
import scala.collection.mutable.ArrayBuffer

/** Spark's task scheduler with the order of stages and the limits of jobs of a plan.
  *
  * Without a plan in force, and after any fault in this class, it is Spark's own.
  */
class LoadmasterTaskScheduler(context: SparkContext, maxFailures: Int, isLocal: Boolean)
    extends TaskSchedulerImpl(context, maxFailures, isLocal) {
  private val logger = org.slf4j.LoggerFactory.getLogger("loadmaster.spark")
  private val reporter = new Reporter(
    context, acts = true, () => backend.reviveOffers(), ExecutorTarget.coresOf(context))
  // Of the present round of offers, which holds this object's lock.
  private var setsOf: Map[String, Seq[TaskSetManager]] = Map.empty
  private var allowances: Map[String, Int] = Map.empty

  override def start(): Unit = {
    super.start()
    reporter.start()
    if (ExecutorTarget.coresOf(context) > 0)
      new ExecutorTarget(context, this, () => reporter.executors).start()
  }

  override val rootPool: Pool = new Pool("", schedulingMode, 0, 0) {
    override def getSortedTaskSetQueue: ArrayBuffer[TaskSetManager] = {
      val queue = super.getSortedTaskSetQueue
      try ordered(queue)
      catch {
        case fault: Exception =>
          logger.warn("a plan was not used", fault)
          allowances = Map.empty
          queue
      }
    }
  }

  private def keyOf(set: TaskSetManager): String =
    Progress.jobKey(set.taskSet.properties, set.taskSet.priority)

  private def ordered(queue: ArrayBuffer[TaskSetManager]): ArrayBuffer[TaskSetManager] = {
    allowances = Map.empty
    // Gangs need their slots at once, so Spark's order counts while one waits.
    reporter.plan.filterNot(_ => queue.exists(set => set.isBarrier || Build.isGang(set.taskSet))) match {
      case None => queue
      case Some(plan) =>
        val keyed = queue.map(set => (set, keyOf(set)))
        setsOf = keyed.toSeq.groupMap(_._2)(_._1)
        // A stage that is newer than the plan goes with its job, whose planned stages may have ended.
        val sorted = keyed.sortBy { case (set, key) =>
          plan.ranks.get(set.stageId).orElse(plan.jobs.get(key)).getOrElse(Int.MaxValue)
        }
        allowances = allow(sorted.map(_._2).distinct.toSeq, plan)
        sorted.map(_._1)
    }
  }

  /** The most tasks of each job: its limit, and what would otherwise be idle, in order. */
  private def allow(order: Seq[String], plan: Plan): Map[String, Int] = {
    val found = mutable.HashMap[String, Int]()
    var left = reporter.slots - plan.idle
    val wanted = order.map { key =>
      val most = setsOf(key).map(set => math.max(set.numTasks - set.tasksSuccessful, set.runningTasks)).sum
      found(key) = math.min(most, plan.limits.getOrElse(key, Int.MaxValue))
      left -= math.max(found(key), runningOf(key))
      key -> most
    }
    for ((key, most) <- wanted if left > 0) {
      val more = math.min(most - found(key), left)
      found(key) += more
      left -= more
    }
    found.toMap
  }

  private def runningOf(key: String): Int = setsOf.getOrElse(key, Nil).map(_.runningTasks).sum

  private def isAllowed(key: String): Boolean =
    try allowances.get(key).forall(runningOf(key) < _)
    catch { case _: Exception => true }

  override private[scheduler] def createTaskSetManager(taskSet: TaskSet, maxTaskFailures: Int): TaskSetManager = {
    new TaskSetManager(this, taskSet, maxTaskFailures, healthTrackerOpt) {
      private lazy val key = keyOf(this)
      override def resourceOffer(
          execId: String, host: String, maxLocality: TaskLocality, taskCpus: Build.TaskCpus,
          taskResourceAssignments: Map[String, Map[String, Long]]) =
        if (!isAllowed(key)) (None, false, 0)
        else super.resourceOffer(execId, host, maxLocality, taskCpus, taskResourceAssignments)
    }
  }
}

/** Masters `local-loadmaster[N]`, `local-loadmaster[*]` and `spark-loadmaster://HOST:PORT`. */
class LoadmasterClusterManager extends ExternalClusterManager {
  private val Local = """local-loadmaster\[([0-9]+|\*)\]""".r
  private val Standalone = """spark-loadmaster://(.+)""".r

  override def canCreate(master: String): Boolean = master.contains("-loadmaster")

  override def createTaskScheduler(context: SparkContext, master: String): TaskScheduler = {
    if (!SPARK_VERSION.startsWith(Build.Minor + "."))
      throw new SparkException(
        s"this jar of Loadmaster is for Spark ${Build.Minor}, and this is $SPARK_VERSION; build one for it")
    if (master.startsWith("local")) new LoadmasterTaskScheduler(context, 1, true)
    else new LoadmasterTaskScheduler(context, context.conf.getInt("spark.task.maxFailures", 4), false)
  }

  override def createSchedulerBackend(
      context: SparkContext, master: String, scheduler: TaskScheduler): SchedulerBackend = {
    val own = scheduler.asInstanceOf[TaskSchedulerImpl]
    master match {
      case Local(threads) =>
        val cores = if (threads == "*") Runtime.getRuntime.availableProcessors() else threads.toInt
        new LocalSchedulerBackend(context.getConf, own, cores)
      case Standalone(places) =>
        new StandaloneSchedulerBackend(own, context, places.split(",").map("spark://" + _))
      case _ =>
        throw new SparkException(
          s"master $master; expected local-loadmaster[N] or spark-loadmaster://HOST:PORT")
    }
  }

  override def initialize(scheduler: TaskScheduler, backend: SchedulerBackend): Unit =
    scheduler.asInstanceOf[TaskSchedulerImpl].initialize(backend)
}
