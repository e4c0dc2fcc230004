import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.Serializable;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.channels.FileChannel;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiter;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.metrics.Gauge;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * source -> parse -> enrich -> sink, whose load another process sets through a file of longs.
 *
 * <p>Arguments: FILE PARSE_MICROS ENRICH_MICROS NAME. The file is mapped into memory: [0] records due so
 * far, as the end offset of a topic, written from outside; [1] next record of the source; [2] records
 * that arrived at the sink, repeated ones included; [3] the number of the last one there. parse and
 * enrich park for their time a record: Flink sees them as busy, and they take no processor. Several jobs
 * may run in one TaskManager, so all that is static is kept by file.
 */
public class LoadJob {
    static final int DUE = 0, NEXT = 1, OUT = 2, LAST = 3;
    static final AtomicLong READERS = new AtomicLong();
    static final java.util.Map<String, Long> CURRENT = new java.util.concurrent.ConcurrentHashMap<>();

    static LongBuffer map(String file) {
        try (RandomAccessFile opened = new RandomAccessFile(file, "rw")) {
            FileChannel channel = opened.getChannel();
            return channel.map(FileChannel.MapMode.READ_WRITE, 0, 64).order(ByteOrder.nativeOrder()).asLongBuffer();
        } catch (IOException fault) {
            throw new IllegalStateException(fault);
        }
    }

    /** Passes the numbers on and reports those that are due and not yet read as pending. */
    static class Numbers implements GeneratorFunction<Long, Long> {
        final String file;
        transient LongBuffer shared;

        Numbers(String file) { this.file = file; }

        @Override public void open(SourceReaderContext context) {
            shared = LoadJob.map(file);
            context.metricGroup().setPendingRecordsGauge((Gauge<Long>) () -> Math.max(0, shared.get(DUE) - shared.get(NEXT)));
        }

        @Override public Long map(Long index) {
            shared.put(NEXT, index + 1);
            return index;
        }

        @Override public void close() { CURRENT.remove(file); }
    }

    /** Lets the source emit a record once it is due. */
    static class WhenDue<S extends SourceSplit> implements RateLimiter<S> {
        static final ScheduledExecutorService TIMER = Executors.newSingleThreadScheduledExecutor(task -> {
            Thread thread = new Thread(task, "due");
            thread.setDaemon(true);
            return thread;
        });
        final String file;
        final LongBuffer shared;
        final long reader = READERS.incrementAndGet();

        WhenDue(String file) {
            this.file = file;
            shared = LoadJob.map(file);
            CURRENT.put(file, reader);
        }

        @Override public CompletionStage<Void> acquire(int count) {
            if (isDue()) return CompletableFuture.completedFuture(null);
            CompletableFuture<Void> ready = new CompletableFuture<>();
            check(ready);
            return ready;
        }

        boolean isDue() { return shared.get(NEXT) < shared.get(DUE); }

        void check(CompletableFuture<Void> ready) {
            Long current = CURRENT.get(file);
            if (current == null || current != reader) return; // a future of a closed task must not complete
            if (isDue()) ready.complete(null);
            else TIMER.schedule(() -> check(ready), 5, TimeUnit.MILLISECONDS);
        }
    }

    /** Parks for the time of many records at once, as a park takes 50 microseconds at least. */
    static class Work extends RichMapFunction<Long, Long> implements Serializable {
        final long nanos;
        long owed;

        Work(long micros) { nanos = micros * 1000; }

        @Override public Long map(Long value) {
            owed += nanos;
            if (owed > 5_000_000) {
                long began = System.nanoTime();
                LockSupport.parkNanos(owed);
                owed -= System.nanoTime() - began;
            }
            return value;
        }
    }

    static class Counting implements Sink<Long> {
        final String file;

        Counting(String file) { this.file = file; }

        @Override public SinkWriter<Long> createWriter(WriterInitContext context) {
            LongBuffer shared = LoadJob.map(file);
            return new SinkWriter<>() {
                @Override public void write(Long value, Context ignored) {
                    shared.put(OUT, shared.get(OUT) + 1);
                    shared.put(LAST, value);
                }
                @Override public void flush(boolean end) { }
                @Override public void close() { }
            };
        }
    }

    public static void main(String[] args) throws Exception {
        String file = args[0];
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        env.disableOperatorChaining();
        env.setMaxParallelism(64);
        env.fromSource(new DataGeneratorSource<>(new Numbers(file), Long.MAX_VALUE, parallelism -> new WhenDue<>(file), Types.LONG),
                WatermarkStrategy.noWatermarks(), "source").uid("source").setParallelism(1).setMaxParallelism(1)
            .rebalance().map(new Work(Long.parseLong(args[1]))).name("parse").uid("parse")
            .keyBy(value -> value % 1009).map(new Work(Long.parseLong(args[2]))).name("enrich").uid("enrich")
            .sinkTo(new Counting(file)).name("sink").uid("sink").setParallelism(1).setMaxParallelism(1);
        env.execute(args[3]);
    }
}
