package loadmaster.spark

import com.fasterxml.jackson.databind.node.{ArrayNode, ObjectNode}
import java.util.Properties
import org.apache.spark.Success
import org.apache.spark.scheduler._
import scala.collection.mutable

/** The jobs and stages of an application, from the events of a SparkListener (public API).
  *
  * A job is a SQL execution (its root), or a Spark job that belongs to none. Under adaptive
  * execution the stages of a query come as Spark jobs of their own, one after the other.
  */
private final class StageRecord(val id: Int, val name: String, var tasks: Int, val parents: Seq[Int]) {
  var attempt = -1
  var submitted, completed = false
  var readySinceMs = 0L // parents done, not submitted
  val running = mutable.HashSet[Long]() // task attempts
  val finished = mutable.BitSet() // partitions
  var runMs, runs = 0L
}

private final class JobRecord(val id: String, val name: String, val submittedMs: Long) {
  val stages = mutable.LinkedHashSet[Int]()
  val open = mutable.HashSet[Int]() // Spark jobs
  var failed = false
  var quietSinceMs = 0L // no Spark job is open
}

private final case class EndedJob(
    id: String, name: String, succeeded: Boolean, completionMs: Long, workMs: Long, atMs: Long)

final class Progress(onChange: () => Unit) extends SparkListener {
  import Progress._

  private val jobs = mutable.LinkedHashMap[String, JobRecord]()
  private val stages = mutable.HashMap[Int, StageRecord]()
  private val keys = mutable.HashMap[Int, String]() // Spark job -> job
  private val cores = mutable.HashMap[String, Int]() // of executors
  private val ended = mutable.Queue[EndedJob]()
  private var applicationId, applicationName = ""
  private var taskCpus = 1.0
  private var over = false

  def id: String = synchronized(applicationId)
  def isOver: Boolean = synchronized(over)
  def slots: Int = synchronized(cores.values.map(count => (count / taskCpus).toInt).sum)

  /** Run `change` under the lock; a fault in it must not reach Spark's listener bus. */
  private def update(change: => Unit): Unit = {
    try synchronized(change)
    catch { case fault: Exception => Log.debug("an event was not read", fault) }
    onChange()
  }

  override def onApplicationStart(event: SparkListenerApplicationStart): Unit = update {
    applicationId = event.appId.getOrElse("")
    applicationName = event.appName
  }

  override def onApplicationEnd(event: SparkListenerApplicationEnd): Unit = update { over = true }

  override def onEnvironmentUpdate(event: SparkListenerEnvironmentUpdate): Unit = update {
    val properties = event.environmentDetails.getOrElse("Spark Properties", Nil).toMap
    properties.get("spark.task.cpus").flatMap(_.toDoubleOption).filter(_ > 0).foreach(taskCpus = _)
  }

  override def onExecutorAdded(event: SparkListenerExecutorAdded): Unit = update {
    cores(event.executorId) = event.executorInfo.totalCores
  }

  override def onExecutorRemoved(event: SparkListenerExecutorRemoved): Unit = update {
    cores -= event.executorId
  }

  override def onJobStart(event: SparkListenerJobStart): Unit = update {
    val key = jobKey(event.properties, event.jobId)
    keys(event.jobId) = key
    val job = jobs.getOrElseUpdate(key, new JobRecord(key, jobName(event), event.time))
    job.open += event.jobId
    job.quietSinceMs = 0
    for (info <- event.stageInfos.sortBy(_.stageId)) {
      job.stages += info.stageId
      stages.getOrElseUpdate(
        info.stageId, new StageRecord(info.stageId, info.name, info.numTasks, info.parentIds))
    }
  }

  override def onJobEnd(event: SparkListenerJobEnd): Unit = update {
    for (key <- keys.remove(event.jobId); job <- jobs.get(key)) {
      job.open -= event.jobId
      job.failed |= event.jobResult != JobSucceeded
      job.quietSinceMs = event.time
      if (!key.startsWith(Sql)) end(job, event.time)
    }
  }

  /** Ends of SQL executions; their class belongs to another module. */
  override def onOtherEvent(event: SparkListenerEvent): Unit = event match {
    case product: Product if event.getClass.getSimpleName == "SparkListenerSQLExecutionEnd" =>
      update(jobs.get(Sql + product.productElement(0)).foreach(end(_, System.currentTimeMillis())))
    case _ =>
  }

  private def end(job: JobRecord, nowMs: Long): Unit = {
    jobs -= job.id
    val shared = jobs.values.flatMap(_.stages).toSet
    val own = job.stages.flatMap(stages.get)
    ended += EndedJob(
      job.id, job.name, !job.failed, nowMs - job.submittedMs, own.map(_.runMs).sum, nowMs)
    while (ended.size > EndedMost) ended.dequeue()
    for (stage <- own if !shared(stage.id)) stages -= stage.id
  }

  override def onStageSubmitted(event: SparkListenerStageSubmitted): Unit = update {
    val info = event.stageInfo
    for (stage <- stages.get(info.stageId)) {
      stage.submitted = true
      stage.completed = false
      stage.attempt = info.attemptNumber()
      stage.tasks = info.numTasks // of a later attempt: those whose results were lost
      stage.running.clear()
      stage.finished.clear()
    }
  }

  override def onStageCompleted(event: SparkListenerStageCompleted): Unit = update {
    for (stage <- stages.get(event.stageInfo.stageId)) {
      if (event.stageInfo.failureReason.isEmpty) stage.completed = true
      else stage.submitted = false
    }
  }

  override def onTaskStart(event: SparkListenerTaskStart): Unit = update {
    for (stage <- stages.get(event.stageId) if stage.attempt == event.stageAttemptId)
      stage.running += event.taskInfo.taskId
  }

  override def onTaskEnd(event: SparkListenerTaskEnd): Unit = update {
    for (stage <- stages.get(event.stageId) if event.taskInfo != null) {
      val current = stage.attempt == event.stageAttemptId
      if (current) stage.running -= event.taskInfo.taskId
      if (event.reason == Success) {
        if (current) stage.finished += event.taskInfo.index
        stage.runMs += event.taskInfo.duration
        stage.runs += 1
      }
    }
  }

  /** Write all unfinished jobs with their stages, and the jobs that have ended lately. */
  def write(out: ObjectNode, nowMs: Long): Unit = synchronized {
    out.put("application", applicationId).put("name", shortened(applicationName))
    out.put("slots", slots).put("executors", cores.size).put("over", over)
    dropForgotten(nowMs)
    val listed = out.putArray("jobs")
    for (job <- jobs.values.take(JobsMost)) writeJob(listed, job, nowMs)
    val done = out.putArray("ended")
    for (job <- ended if nowMs - job.atMs < EndedKeptMs) {
      done.addObject().put("id", job.id).put("name", job.name).put("succeeded", job.succeeded)
        .put("completion_ms", job.completionMs).put("work_ms", job.workMs)
    }
  }

  private def writeJob(out: ArrayNode, job: JobRecord, nowMs: Long): Unit = {
    val own = job.stages.toSeq.sorted.flatMap(stages.get)
    val skipped = skippedOf(own, nowMs)
    val shown = own.filterNot(stage => skipped(stage.id)).take(StagesMost)
    val ids = shown.map(_.id).toSet
    val node = out.addObject().put("id", job.id).put("name", job.name)
    node.put("age_ms", math.max(nowMs - job.submittedMs, 0))
    val listed = node.putArray("stages")
    for (stage <- shown) {
      val finished = if (stage.completed) stage.tasks else math.min(stage.finished.size, stage.tasks)
      val started = if (stage.completed) stage.tasks
        else math.min(finished + stage.running.size, stage.tasks)
      val item = listed.addObject().put("id", stage.id).put("name", shortened(stage.name))
      item.put("tasks", stage.tasks).put("started", started).put("finished", finished)
      if (stage.runs > 0) item.put("mean_ms", stage.runMs.toDouble / stage.runs)
      val parents = item.putArray("parents")
      stage.parents.filter(ids).foreach(parents.add(_))
    }
  }

  /** Stages that Spark will not run, as their results exist: no event names them.
    *
    * A stage that was not submitted is one if a stage that needs it was, or if it has been ready
    * for a while.
    */
  private def skippedOf(own: Seq[StageRecord], nowMs: Long): Set[Int] = {
    val byId = own.map(stage => stage.id -> stage).toMap
    val skipped = mutable.HashSet[Int]()
    for (stage <- own.reverse if stage.submitted || stage.completed || skipped(stage.id))
      for (parent <- stage.parents.flatMap(byId.get) if !parent.submitted && !parent.completed)
        skipped += parent.id
    for (stage <- own if !stage.submitted && !stage.completed && !skipped(stage.id)) {
      val ready = stage.parents.flatMap(byId.get).forall(one => one.completed || skipped(one.id))
      if (!ready) stage.readySinceMs = 0
      else if (stage.readySinceMs == 0) stage.readySinceMs = nowMs
      else if (nowMs - stage.readySinceMs > ReadyMs) skipped += stage.id
    }
    skipped.toSet
  }

  /** SQL executions whose end was not seen. */
  private def dropForgotten(nowMs: Long): Unit = {
    val quiet = jobs.values.filter(job => job.open.isEmpty && nowMs - job.quietSinceMs > QuietMs)
    quiet.toSeq.foreach(end(_, nowMs))
  }
}

object Progress {
  val Sql = "sql-"
  private val Log = org.slf4j.LoggerFactory.getLogger("loadmaster.spark")
  private val JobsMost, StagesMost = 1000
  private val EndedMost = 500
  private val EndedKeptMs = 30000L
  private val QuietMs = 600000L
  private val ReadyMs = 250L
  private val LongestName = 160

  /** The job of a Spark job, by its properties: `sql-ROOT` or `job-ID`. */
  def jobKey(properties: Properties, sparkJob: Int): String = {
    val found = Option(properties).flatMap { all =>
      Seq("spark.sql.execution.root.id", "spark.sql.execution.id").map(all.getProperty).find(_ != null)
    }
    found.map(Sql + _).getOrElse(s"job-$sparkJob")
  }

  private def jobName(event: SparkListenerJobStart): String = {
    val names = Seq("spark.job.description", "spark.jobGroup.id", "callSite.short")
    val given = Option(event.properties).toSeq.flatMap(all => names.map(all.getProperty))
    val last = event.stageInfos.maxByOption(_.stageId).map(_.name)
    shortened((given ++ last).find(text => text != null && text.nonEmpty).getOrElse(""))
  }

  private def shortened(text: String): String = text.take(LongestName)
}
