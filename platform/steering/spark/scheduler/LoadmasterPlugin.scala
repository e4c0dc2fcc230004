package loadmaster.spark

import java.util.{Collections, Map => JMap}
import org.apache.spark.SparkContext
import org.apache.spark.api.plugin.{DriverPlugin, ExecutorPlugin, PluginContext, SparkPlugin}

/** Reports the stages of any application and changes nothing; public API only.
  *
  * Attached by `spark.plugins=loadmaster.spark.LoadmasterPlugin` and `spark.loadmaster.url`.
  */
final class LoadmasterPlugin extends SparkPlugin {
  override def executorPlugin(): ExecutorPlugin = null

  override def driverPlugin(): DriverPlugin = new DriverPlugin {
    override def init(context: SparkContext, plugin: PluginContext): JMap[String, String] = {
      if (!context.master.contains("-loadmaster")) // the scheduler class reports by itself
        new Reporter(context, acts = false, () => ()).start()
      Collections.emptyMap()
    }
  }
}
