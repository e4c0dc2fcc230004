package loadmaster.spark

import com.fasterxml.jackson.databind.ObjectMapper
import java.net.{HttpURLConnection, Proxy, URI}
import java.nio.charset.StandardCharsets.UTF_8
import org.apache.spark.SparkContext

/** Posts what the application does to `loadmaster steer spark`, and keeps the plan of the reply.
  *
  * One daemon thread; it never blocks Spark's. Without a reply the last plan holds until its
  * deadline, and then none; likewise the number of executors. `onPlan` is called when the plan has
  * changed or has ended. `executorCores` is 0 where the number of executors cannot be set.
  */
final class Reporter(
    context: SparkContext, acts: Boolean, onPlan: () => Unit, executorCores: Int = 0) {
  import Reporter._

  private val conf = context.getConf
  private val url = conf.get("spark.loadmaster.url", "").stripSuffix("/")
  private val token = conf.get("spark.loadmaster.token", "")
  private val pauseMs = math.max(conf.getTimeAsMs("spark.loadmaster.pause", "50ms"), 10)
  private val progress = new Progress(() => changed())
  private val mapper = new ObjectMapper()
  private val lock = new Object
  private var dirty, stopped = false
  private var sequence = 0L
  @volatile private var current: Option[Plan] = None
  @volatile private var count: Option[ExecutorCount] = None

  /** The plan in force, if there is one. */
  def plan: Option[Plan] = current.filter(_.isInForce)
  def slots: Int = progress.slots

  /** The decided number of executors, while it is in force. */
  def executors: Option[ExecutorCount] = count.filter(_.isInForce)

  def start(): Unit = {
    context.addSparkListener(progress)
    if (url.isEmpty) Log.warn("spark.loadmaster.url is not set: Spark schedules by itself")
    else {
      val thread = new Thread(() => run(), "loadmaster-reporter")
      thread.setDaemon(true)
      thread.start()
    }
  }

  private def changed(): Unit = lock.synchronized {
    dirty = true
    lock.notifyAll()
  }

  private def run(): Unit = {
    var failures = 0
    while (!stopped) {
      val began = System.nanoTime()
      try {
        if (progress.id.nonEmpty) exchange()
        if (failures > 0) Log.info(s"$url replies again")
        failures = 0
      } catch {
        case fault: Exception =>
          if (failures == 0) Log.warn(s"no plan from $url: $fault; the last one holds until its end")
          failures = math.min(failures + 1, 6)
      }
      if (progress.isOver) stopped = true
      else if (failures > 0) await(System.nanoTime(), RetryMs << (failures - 1))
      else await(began, 0)
    }
  }

  /** Wait for a change, at least `pauseMs` from `began` (`backOffMs` after a failure), at most a
    * heartbeat.
    */
  private def await(began: Long, backOffMs: Long): Unit = {
    def spentMs = (System.nanoTime() - began) / 1000000L
    val leastMs = math.max(pauseMs, math.min(backOffMs, RetryMostMs))
    def due = spentMs >= leastMs && (dirty || spentMs >= HeartbeatMs)
    lock.synchronized {
      while (!due) {
        val untilMs = if (spentMs < leastMs) leastMs - spentMs else HeartbeatMs - spentMs
        lock.wait(math.max(1, math.min(untilMs, 200)))
        endPlan()
      }
      dirty = false
    }
  }

  private def endPlan(): Unit = if (current.exists(!_.isInForce)) replace(None)

  private def replace(plan: Option[Plan]): Unit = {
    val before = current
    current = plan
    val same = before.isDefined && plan.isDefined && before.get.id == plan.get.id
    if (!same && (before.isDefined || plan.isDefined)) {
      for (found <- plan) Log.info(s"plan ${found.id}: ${found.reason}")
      if (plan.isEmpty) Log.info("no plan: Spark's own order")
      try onPlan()
      catch { case fault: Exception => Log.debug("offers were not revived", fault) }
    }
  }

  private def exchange(): Unit = {
    sequence += 1
    val body = mapper.createObjectNode().put("version", 1).put("spark", context.version)
    body.put("acts", acts).put("executor_cores", executorCores).put("sequence", sequence).put("plan", plan.map(_.id).getOrElse(""))
    progress.write(body, System.currentTimeMillis())
    val connection = new URI(s"$url/v1/report").toURL.openConnection(Proxy.NO_PROXY)
      .asInstanceOf[HttpURLConnection]
    connection.setConnectTimeout(TimeoutMs)
    connection.setReadTimeout(TimeoutMs)
    connection.setRequestMethod("POST")
    connection.setDoOutput(true)
    connection.setRequestProperty("Content-Type", "application/json")
    if (token.nonEmpty) connection.setRequestProperty("Authorization", s"Bearer $token")
    val bytes = mapper.writeValueAsString(body).getBytes(UTF_8)
    connection.setFixedLengthStreamingMode(bytes.length)
    connection.getOutputStream.write(bytes)
    if (connection.getResponseCode != 200) {
      val error = connection.getErrorStream
      val text = if (error == null) "" else new String(error.readNBytes(500), UTF_8)
      throw new java.io.IOException(s"${connection.getResponseCode} ${text.trim}")
    }
    val stream = connection.getInputStream
    val reply = try mapper.readTree(stream.readNBytes(ReplyMost)) finally stream.close()
    if (acts && reply.has("plan")) {
      val node = reply.get("plan")
      replace(if (node.isNull) None else Some(Plan.parse(node)).filter(_.isInForce))
    } else endPlan()
    if (acts && reply.has("executors")) {
      val node = reply.get("executors")
      count = if (node.isNull) None else Some(ExecutorCount.parse(node))
    }
  }
}

object Reporter {
  private val Log = org.slf4j.LoggerFactory.getLogger("loadmaster.spark")
  private val HeartbeatMs = 1000L
  private val RetryMs = 250L
  private val RetryMostMs = 5000L
  private val TimeoutMs = 1000
  private val ReplyMost = 8 << 20
}
