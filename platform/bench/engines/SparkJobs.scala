package loadmaster.bench

import java.io.PrintWriter
import java.nio.file.{Files, Paths}
import java.util.concurrent.atomic.AtomicInteger
import org.apache.spark.{HashPartitioner, SparkContext}
import org.apache.spark.rdd.RDD
import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import scala.jdk.CollectionConverters._

/** Runs the jobs of a JSON file at their times, with tasks that sleep: JOBS.json OUT.csv.
  *
  * Prints `ready` when the context is warm, and begins when a line comes on stdin. OUT has a line
  * for each job: name, submission and end in ms from the beginning, tasks run, tasks run again.
  */
object SparkJobs {
  final case class StageSpec(name: String, durationsMs: Array[Long], parents: Seq[Int])
  final case class JobSpec(name: String, pool: String, arrivalMs: Long, stages: IndexedSeq[StageSpec])

  def main(arguments: Array[String]): Unit = {
    val jobs = read(arguments(0))
    val context = SparkContext.getOrCreate()
    warmUp(context)
    println("ready")
    scala.io.StdIn.readLine()
    val began = System.nanoTime()
    def nowMs = (System.nanoTime() - began) / 1000000L
    val threads = jobs.zipWithIndex.map { case (job, number) =>
      var submitted, ended = -1L
      val thread = new Thread(() => {
        Thread.sleep(math.max(job.arrivalMs - nowMs, 0))
        submitted = nowMs
        context.setLocalProperty("loadmaster.submitted_ms", System.currentTimeMillis().toString)
        try {
          run(context, job, number)
          ended = nowMs
        } catch { case fault: Exception => println(s"${job.name}: $fault") }
      })
      thread.start()
      (job, number, thread, () => (submitted, ended))
    }
    threads.foreach(_._3.join())
    val out = new PrintWriter(arguments(1))
    out.println("job,name,submitted_ms,ended_ms,tasks,repeated")
    for ((job, number, _, times) <- threads) {
      val (submitted, ended) = times()
      val counts = Counts.of(number)
      out.println(s"$number,${job.name},$submitted,$ended,${counts.size},${counts.count(_ > 1)}")
    }
    out.close()
    context.stop()
  }

  private def read(path: String): Seq[JobSpec] = {
    val tree = new ObjectMapper().readTree(Files.readAllBytes(Paths.get(path)))
    def longs(node: JsonNode) = node.elements.asScala.map(_.asLong).toArray
    tree.elements.asScala.map { job =>
      val stages = job.get("stages").elements.asScala.map { stage =>
        StageSpec(stage.get("name").asText, longs(stage.get("durations_ms")),
          longs(stage.get("parents")).map(_.toInt).toSeq)
      }.toIndexedSeq
      JobSpec(job.get("name").asText, job.path("pool").asText("default"), job.get("arrival_ms").asLong, stages)
    }.toSeq
  }

  private def warmUp(context: SparkContext): Unit = {
    val stage = (parents: Seq[Int]) => StageSpec("warm-up", Array.fill(24)(1L), parents)
    val job = JobSpec("warm-up", "default", 0, IndexedSeq(stage(Nil), stage(Nil), stage(Seq(0, 1))))
    for (_ <- 1 to 6) run(context, job, -1)
  }

  /** The last stage ends the job; every other one has a child. */
  def run(context: SparkContext, job: JobSpec, number: Int): Unit = {
    context.setJobDescription(job.name)
    context.setLocalProperty("spark.scheduler.pool", job.pool)
    val widest = job.stages.indices.map { place =>
      job.stages.filter(_.parents.contains(place)).map(_.durationsMs.length).maxOption.getOrElse(1)
    }
    val shuffled = new Array[RDD[(Int, Int)]](job.stages.length)
    for ((stage, place) <- job.stages.zipWithIndex) {
      context.setCallSite(stage.name)
      val tasks = stage.durationsMs.length
      val inputs = stage.parents.map { parent =>
        val all = shuffled(parent)
        if (all.getNumPartitions == tasks) all else all.coalesce(tasks, shuffle = false)
      }
      val input: RDD[(Int, Int)] =
        if (inputs.isEmpty) context.parallelize(0 until tasks, tasks).map(n => (n, n))
        else inputs.reduce((left, right) => left.zipPartitions(right)((a, b) => { a.foreach(_ => ()); b }))
      val durations = stage.durationsMs
      val made = input.mapPartitionsWithIndex { (part, rows) =>
        rows.foreach(_ => ())
        Thread.sleep(durations(part))
        Counts.note(number, place, part)
        Iterator((part, part))
      }
      if (place == job.stages.length - 1) made.foreachPartition(_.foreach(_ => ()))
      else shuffled(place) = made.partitionBy(new HashPartitioner(widest(place)))
    }
  }
}

/** How often each task ran, in a driver that is its own executor. */
object Counts {
  private val all = new java.util.concurrent.ConcurrentHashMap[(Int, Int, Int), AtomicInteger]()
  def note(job: Int, stage: Int, part: Int): Unit =
    all.computeIfAbsent((job, stage, part), _ => new AtomicInteger()).incrementAndGet()
  def of(job: Int): Seq[Int] = all.asScala.collect { case (key, count) if key._1 == job => count.get }.toSeq
}
