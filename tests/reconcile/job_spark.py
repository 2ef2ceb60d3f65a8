"""Spark with the properties and the rights of a job, where its pods run nowhere."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster import settings
from tests.reconcile.job_drivers import Job, Pod
from tests.support import jvm, spark_jars
from tests.support.apiserver import ApiServer

# A machine that is short of time takes minutes to start a JVM with Spark.
PATIENCE_S = 400

# What the driver does with Spark, with the number of executors from standard input.
SPARK = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from odradek_spark import cluster_conf, config_loading, executors
import os

environment = config_loading.parse_environment(os.environ, uid=10001, gid=10001)
job = config_loading.parse_job(Path(os.environ["ODRADEK_JOB"]).read_text(), environment)
Path("executor.yaml").write_text(cluster_conf.executor_pod_text(job, environment))
conf = cluster_conf.spark_conf(job, environment, "executor.yaml")
conf["spark.authenticate.secret.file"] = os.environ["AUTH_FILE"]
conf["spark.driver.bindAddress"] = "127.0.0.1"
conf["spark.dynamicAllocation.executorIdleTimeout"] = "1s"
builder = SparkSession.builder
for name, value in conf.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
scale = executors.Scale("executors", job.executor_instances)
assert scale.follow(spark) is None
print("started", flush=True)
for line in sys.stdin:
    word, _, number = line.strip().partition(" ")
    if word == "resize":
        Path("executors").write_text(number + "\\n")
        assert scale.follow(spark) == int(number)
    print(executors.registered(spark), flush=True)
spark.stop()
"""


def kill(process: subprocess.Popen[Any]) -> None:
    """End a process and its JVM, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class SparkDriver:
    """Spark with the job's own properties and rights, where its pods run nowhere."""

    def __init__(self, job: Job, api: ApiServer, folder: Path) -> None:
        self.job, self.folder = job, folder
        pod = job.job.pod
        assert pod is not None
        self.key = folder / "secret"
        secret = job.admin.read("secret", job.place.namespace, pod.auth_secret)
        self.key.write_bytes(base64.b64decode(secret["data"]["secret"]))
        text = job.place.kubectl.get("configmap", f"{pod.name}-job")["data"]["job.json"]
        (folder / "job.json").write_text(text)
        self.log = (folder / "driver.log").open("ab")
        self.archive = jvm.Archive("spark-executor", f"{spark_jars.home()}/jars/*")
        self.process = subprocess.Popen(
            [sys.executable, "-c", SPARK],
            cwd=folder,
            env={
                **os.environ,
                "KUBECONFIG": str(job.kubeconfig),
                "ODRADEK_SPARK_MASTER": f"k8s://{api.url}",
                "ODRADEK_JOB": str(folder / "job.json"),
                "AUTH_FILE": str(self.key),
                "POD_NAME": job.environment.pod_name,
                "POD_NAMESPACE": job.environment.pod_namespace,
                "POD_UID": job.environment.pod_uid,
                "POD_IP": "127.0.0.1",
                "SPARK_LOCAL_DIRS": str(folder),
                "SPARK_HOME": str(spark_jars.home()),
                "SPARK_SUBMIT_OPTS": " ".join(spark_jars.java_options()),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "started\n", self.said()

    def said(self) -> str:
        return (self.folder / "driver.log").read_text()

    def ask(self, line: str) -> int:
        """Send a command, and return how many executors are registered."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def pods(self) -> list[Pod]:
        found = self.job.admin.read("pod", self.job.place.namespace, "")["items"]
        uid = self.job.environment.pod_uid
        return [
            one
            for one in found
            if one["metadata"].get("ownerReferences", [{}])[0].get("uid") == uid
            and "spark-app-selector" in one["metadata"]["labels"]
        ]

    def run(self, pod: Pod, key: Path) -> subprocess.Popen[bytes]:
        """Run the container of an executor's pod as a kubelet would, with a key of one's choice."""
        (container,) = pod["spec"]["containers"]
        variables = {one["name"]: one.get("value", "") for one in container["env"]}
        for name, value in variables.items():
            if value.startswith("-Dspark.authenticate.secret.file="):
                variables[name] = f"-Dspark.authenticate.secret.file={key}"
        variables |= {"SPARK_EXECUTOR_POD_IP": "127.0.0.1", "SPARK_HOME": str(spark_jars.home())}
        variables |= {"SPARK_EXECUTOR_POD_NAME": pod["metadata"]["name"]}
        variables["JAVA_TOOL_OPTIONS"] = " ".join([*spark_jars.QUICK, *self.archive.options])
        return subprocess.Popen(
            [str(settings.REPO / "operator/spark_job/spark-entrypoint"), *container["args"]],
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], **variables, "SPARK_EXECUTOR_MEMORY": "480m"},
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    def stop(self) -> int:
        """End it as a driver ends itself, and return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout=PATIENCE_S)

    def close(self) -> None:
        kill(self.process)
        self.log.close()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
