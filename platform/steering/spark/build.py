"""Build of the jar for Spark, by the Scala compiler that every Spark distribution has.

`python -m loadmaster.platform.steering.spark.build [--spark FOLDER]` prints the path of the jar and
the settings of an application. A jar is for one minor version of Spark; it is kept in the cache, by
the digest of the sources and the version of Spark.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

from loadmaster.envs.compiled import cache_root
from loadmaster.envs.errors import InputError

SOURCES = Path(__file__).resolve().parent / "scheduler"
# What differs between minor versions: the type of a task's CPUs, and how gangs beside barrier
# stages are recognised. TESTED are versions in which the tests with a real Spark have run.
VARIANTS = {
    "4.0": ("Int", "false"),
    "4.1": ("Int", "false"),
    "4.2": ("Int", "false"),
    "4.3": ("BigDecimal", "set.isPipelined"),
}
TESTED = ("4.1.4", "4.3.0")
PLUGIN = "loadmaster.spark.LoadmasterPlugin"
_MANAGER = "org.apache.spark.scheduler.loadmaster.LoadmasterClusterManager"
_SERVICE = "META-INF/services/org.apache.spark.scheduler.ExternalClusterManager"
_CORE = re.compile(r"spark-core_2\.13-(\d+\.\d+\.\d+)\.jar$")
COMPILE_S = 600


def find_spark(folder: Path | None = None) -> Path:
    """Return the folder of a Spark distribution: given, $SPARK_HOME, or that of pyspark."""
    if folder is None and (home := os.environ.get("SPARK_HOME")):
        folder = Path(home)
    if folder is None:
        found = find_spec("pyspark")
        if found is None or found.origin is None:
            raise InputError("no Spark was found; expected --spark FOLDER, $SPARK_HOME or pyspark")
        folder = Path(found.origin).parent
    if not (folder / "jars").is_dir() and (folder / "pyspark" / "jars").is_dir():
        folder = folder / "pyspark"
    if not (folder / "jars").is_dir():
        raise InputError(f"{folder} has no folder 'jars'; expected a Spark distribution")
    return folder


def spark_version(spark: Path) -> str:
    """Return the version of a distribution; an InputError if there is no variant for it."""
    found = [match[1] for path in (spark / "jars").iterdir() if (match := _CORE.search(path.name))]
    if not found:
        raise InputError(f"{spark / 'jars'} has no spark-core_2.13-*.jar; expected Spark 4")
    version = found[0]
    if minor_of(version) not in VARIANTS:
        known = f"{', '.join(VARIANTS)}; tested: {', '.join(TESTED)}"
        raise InputError(f"Spark {version} is not supported; expected one of {known}")
    return version


def minor_of(version: str) -> str:
    return ".".join(version.split(".")[:2])


def find_java() -> str:
    """Return the path of java: in $JAVA_HOME, else on the path."""
    home = os.environ.get("JAVA_HOME")
    path = f"{home}/bin/java" if home else shutil.which("java")
    if path is None or not Path(path).is_file():
        raise InputError("no java was found; expected Java 17 on the path or in $JAVA_HOME")
    return path


def build_jar(spark: Path) -> Path:
    """Compile the scheduler for a distribution, unless the cache has it; return the jar."""
    version = spark_version(spark)
    sources = sorted(SOURCES.glob("*.scala"))
    variant = _variant_source(version)
    return compile_jar(spark, sources, {"Build.scala": variant}, {_SERVICE: _MANAGER + "\n"})


def compile_jar(
    spark: Path,
    sources: list[Path],
    texts: dict[str, str] | None = None,
    resources: dict[str, str] | None = None,
    classpath: tuple[Path, ...] = (),
) -> Path:
    """Compile Scala sources, files and `texts` by name, into a jar in the cache."""
    version = spark_version(spark)
    texts, resources = texts or {}, resources or {}
    digest = hashlib.sha256(version.encode())
    for path in (*sources, *classpath):
        digest.update(path.read_bytes())
    for name, text in sorted({**texts, **resources}.items()):
        digest.update(f"{name}\0{text}\0".encode())
    jar = (
        cache_root()
        / "engines"
        / "spark"
        / f"loadmaster-spark-{version}-{digest.hexdigest()[:12]}.jar"
    )
    if jar.is_file():
        return jar
    jar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        classes = Path(work) / "classes"
        classes.mkdir()
        files = [str(path) for path in sources]
        for name, text in texts.items():
            (Path(work) / name).write_text(text)
            files.append(str(Path(work) / name))
        jars = os.pathsep.join([f"{spark / 'jars'}/*", *map(str, classpath)])
        command = [
            find_java(), "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars,
            "scala.tools.nsc.Main", "-usejavacp", "-nowarn", "-d", str(classes), *files,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S)
        if done.returncode != 0:
            text = " ".join((done.stdout + done.stderr).split())[:500]
            raise InputError(f"the sources do not compile with Spark {version}: {text}")
        _write_jar(jar, classes, resources)
    return jar


def _write_jar(jar: Path, classes: Path, resources: dict[str, str]) -> None:
    """Write the classes in a fixed order and without times, and move the jar into place."""
    part = jar.with_suffix(f".{os.getpid()}.part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as out:
        for path in sorted(classes.rglob("*.class")):
            _add(out, str(path.relative_to(classes)), path.read_bytes())
        for name, text in resources.items():
            _add(out, name, text.encode())
    part.replace(jar)


def _add(out: zipfile.ZipFile, name: str, content: bytes) -> None:
    out.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


def _variant_source(version: str) -> str:
    cpus, gang = VARIANTS[minor_of(version)]
    return f"""package org.apache.spark.scheduler.loadmaster

private[loadmaster] object Build {{
  type TaskCpus = {cpus}
  val Minor = "{minor_of(version)}"
  def isGang(set: org.apache.spark.scheduler.TaskSet): Boolean = {gang}
}}
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadmaster.platform.steering.spark.build",
        description="Build Loadmaster's jar for a Spark distribution and print its settings.",
    )
    parser.add_argument(
        "--spark", type=Path, metavar="FOLDER", help="default: $SPARK_HOME, else pyspark's folder"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="copy the jar to this file")
    options = parser.parse_args(arguments)
    try:
        jar = build_jar(find_spark(options.spark))
    except InputError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 2
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        jar = Path(shutil.copy(jar, options.output))
    print(f"{jar}: {jar.stat().st_size / 1024:.0f} KB")
    url = "--conf spark.loadmaster.url=http://127.0.0.1:8720"
    print(f"  report only:  --jars {jar} --conf spark.plugins={PLUGIN} {url}")
    print(f"  scheduler:    --driver-class-path {jar} --master 'local-loadmaster[8]' {url}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
