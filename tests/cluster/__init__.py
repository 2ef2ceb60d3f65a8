"""The development cluster: a real Kubernetes on one Linux machine, with or without Docker.

`python3 -m tests.cluster up` reads the nodes from kind-config.yaml. With a Docker engine, kind
runs them (`kind`). Without one, this package starts the components itself (`builtin`): every node
is a network namespace with its own containerd, kubelet and kube-proxy, the control plane and DNS
run beside them, and `down` removes everything. Images come from the project's Dockerfiles
(`images`), the cluster's own programs from Go modules (`tools`).

Every step is idempotent: a second `up` repairs or does nothing. The package needs only the standard
library and PyYAML, so that it runs before the project is installed.
"""
