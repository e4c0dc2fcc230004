import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.channels.FileChannel;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
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
 * source -> parse -> enrich (keyed state) -> sink, driven and watched through a file of longs.
 *
 * <p>Arguments: FILE PARSE_MICROS ENRICH_MICROS KEYS BYTES_PER_KEY PENDING. The file is mapped into memory:
 * [0] records due so far, written from outside; [1] next record of the source; [2] records at the sink;
 * [3] records that the source emitted again; [4] highest record emitted. parse and enrich park for the
 * given time a record, so that they are busy for Flink but need no processor. PENDING false: the source
 * reports no pendingRecords.
 */
public class ScalingJob {
    static final int DUE = 0, NEXT = 1, OUT = 2, REPLAYED = 3, HIGHEST = 4;
    static final AtomicLong READER = new AtomicLong(); // changes when a reader of the source opens or closes

    static LongBuffer map(String file) {
        try (RandomAccessFile f = new RandomAccessFile(file, "rw")) {
            return f.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, 64).order(ByteOrder.nativeOrder()).asLongBuffer();
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    static class Numbers implements GeneratorFunction<Long, Long> {
        final String file;
        final boolean pending;
        transient LongBuffer shared;

        Numbers(String file, boolean pending) { this.file = file; this.pending = pending; }

        @Override public void open(SourceReaderContext context) {
            shared = ScalingJob.map(file);
            if (pending) {
                context.metricGroup().setPendingRecordsGauge((Gauge<Long>) () -> Math.max(0, shared.get(DUE) - shared.get(NEXT)));
            }
        }

        @Override public Long map(Long index) {
            shared.put(NEXT, index + 1);
            if (index <= shared.get(HIGHEST)) shared.put(REPLAYED, shared.get(REPLAYED) + 1);
            else shared.put(HIGHEST, index);
            return index;
        }

        @Override public void close() { READER.incrementAndGet(); }
    }

    static class WhenDue<S extends SourceSplit> implements RateLimiter<S> {
        static final ScheduledExecutorService TIMER = Executors.newSingleThreadScheduledExecutor(r -> {
            Thread thread = new Thread(r, "due");
            thread.setDaemon(true);
            return thread;
        });
        final LongBuffer shared;
        final long reader = READER.incrementAndGet();

        WhenDue(String file) { shared = map(file); }

        boolean due() { return shared.get(NEXT) < shared.get(DUE); }

        @Override public CompletionStage<Void> acquire(int count) {
            CompletableFuture<Void> ready = new CompletableFuture<>();
            check(ready);
            return ready;
        }

        void check(CompletableFuture<Void> ready) {
            if (reader != READER.get()) return; // a future of a closed task must not complete
            if (due()) ready.complete(null);
            else TIMER.schedule(() -> check(ready), 5, TimeUnit.MILLISECONDS);
        }
    }

    /** Debt of waiting time; one park for many records, as a park takes 50 microseconds at least. */
    static class Service implements java.io.Serializable {
        final long nanos;
        long owed;

        Service(long micros) { nanos = micros * 1000; }

        void serve() {
            owed += nanos;
            if (owed < 2_000_000) return;
            long began = System.nanoTime();
            LockSupport.parkNanos(owed);
            owed -= System.nanoTime() - began;
        }
    }

    static class Parse extends RichMapFunction<Long, Long> {
        final Service service;

        Parse(long micros) { service = new Service(micros); }

        @Override public Long map(Long value) { service.serve(); return value; }
    }

    static class Enrich extends RichMapFunction<Long, Long> {
        final Service service;
        final int bytes;
        transient ValueState<byte[]> state;

        Enrich(long micros, int bytes) { service = new Service(micros); this.bytes = bytes; }

        @Override public void open(OpenContext context) {
            state = getRuntimeContext().getState(new ValueStateDescriptor<>("last", PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO));
        }

        @Override public Long map(Long value) throws IOException {
            if (state.value() == null) {
                byte[] fresh = new byte[bytes];
                new Random(value).nextBytes(fresh);
                state.update(fresh);
            }
            service.serve();
            return value;
        }
    }

    static class Counting implements Sink<Long> {
        final String file;

        Counting(String file) { this.file = file; }

        @Override public SinkWriter<Long> createWriter(WriterInitContext context) {
            LongBuffer shared = ScalingJob.map(file);
            return new SinkWriter<>() {
                @Override public void write(Long value, Context c) { shared.put(OUT, shared.get(OUT) + 1); }
                @Override public void flush(boolean end) { }
                @Override public void close() { }
            };
        }
    }

    public static void main(String[] args) throws Exception {
        String file = args[0];
        int keys = Integer.parseInt(args[3]);
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        env.disableOperatorChaining();
        env.setMaxParallelism(64);
        env.fromSource(new DataGeneratorSource<>(new Numbers(file, Boolean.parseBoolean(args[5])), Long.MAX_VALUE, p -> new WhenDue<>(file), Types.LONG),
                WatermarkStrategy.noWatermarks(), "source").uid("source").setParallelism(1).setMaxParallelism(1)
            .rebalance().map(new Parse(Long.parseLong(args[1]))).name("parse").uid("parse")
            .keyBy(value -> value % keys).map(new Enrich(Long.parseLong(args[2]), Integer.parseInt(args[4]))).name("enrich").uid("enrich")
            .sinkTo(new Counting(file)).name("sink").uid("sink").setParallelism(1);
        env.execute("scaling");
    }
}
