package loadmaster.spark

import com.fasterxml.jackson.databind.JsonNode
import scala.jdk.CollectionConverters._

/** A standing order of stages, and the most tasks that jobs may run at a time.
  *
  * It holds until `deadline` (System.nanoTime); after that Spark's own order counts.
  */
final case class Plan(
    id: String,
    ranks: Map[Int, Int], // stage -> place in the order
    jobs: Map[String, Int], // job -> place of its first stage, for stages newer than the plan
    limits: Map[String, Int], // job -> tasks at a time
    idle: Int, // slots that are left idle on purpose, where tasks of limited jobs wait
    deadline: Long,
    reason: String
) {
  def isInForce: Boolean = System.nanoTime() - deadline < 0
}

object Plan {
  val LongestMs: Long = 600000

  /** The end of an order, by its field `ttl_ms`. */
  def deadlineOf(node: JsonNode): Long = {
    val ttlMs = math.min(math.max(node.path("ttl_ms").asLong(0), 0), LongestMs)
    System.nanoTime() + ttlMs * 1000000L
  }

  /** Read the field `plan` of a reply; throws on one that is malformed. */
  def parse(node: JsonNode): Plan = {
    val ranks = node.path("stages").elements.asScala.map(_.asInt(-1)).zipWithIndex.toMap
    def numbers(field: String, least: Int) = node.path(field).properties.asScala.map { entry =>
      entry.getKey -> math.max(entry.getValue.asInt(least), least)
    }.toMap
    Plan(node.path("id").asText(""), ranks, numbers("jobs", 0), numbers("limits", 1),
      math.max(node.path("idle").asInt(0), 0), deadlineOf(node), node.path("reason").asText(""))
  }
}

/** A number of executors that holds until `deadline` (System.nanoTime). */
final case class ExecutorCount(count: Int, deadline: Long, reason: String) {
  def isInForce: Boolean = System.nanoTime() - deadline < 0
}

object ExecutorCount {
  /** Read the field `executors` of a reply; throws on one that is malformed. */
  def parse(node: JsonNode): ExecutorCount = {
    val count = node.path("count").asInt(-1)
    if (count < 0) throw new java.io.IOException(s"executors: count $count; expected 0 or more")
    ExecutorCount(count, Plan.deadlineOf(node), node.path("reason").asText(""))
  }
}
