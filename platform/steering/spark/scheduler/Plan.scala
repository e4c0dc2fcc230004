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
    limits: Map[String, Int], // job -> tasks at a time
    idle: Int, // slots that are left idle on purpose, where tasks of limited jobs wait
    deadline: Long,
    reason: String
) {
  def isInForce: Boolean = System.nanoTime() - deadline < 0
}

object Plan {
  val LongestMs: Long = 600000

  /** Read the field `plan` of a reply; throws on one that is malformed. */
  def parse(node: JsonNode): Plan = {
    val ttlMs = math.min(math.max(node.path("ttl_ms").asLong(0), 0), LongestMs)
    val ranks = node.path("stages").elements.asScala.map(_.asInt(-1)).zipWithIndex.toMap
    val limits = node.path("limits").properties.asScala.map { entry =>
      entry.getKey -> math.max(entry.getValue.asInt(1), 1)
    }.toMap
    val deadline = System.nanoTime() + ttlMs * 1000000L
    Plan(node.path("id").asText(""), ranks, limits, math.max(node.path("idle").asInt(0), 0),
      deadline, node.path("reason").asText(""))
  }
}
