"""The development cluster: a real Kubernetes on one Linux machine, with or without Docker.

`python3 -m tests.cluster up` reads the nodes from kind-config.yaml. Where a Docker engine answers,
kind runs them (`kind`); elsewhere this package boots the components itself (`builtin`): every node
is a network namespace with its own containerd, kubelet and kube-proxy, the control plane and DNS
run beside them, and all of it is gone after `down`. Images come from the project's Dockerfiles
(`images`), the cluster's own programs from Go modules (`tools`).

Every step first looks whether its result is there, so a second `up` repairs or does nothing.
Only the standard library and PyYAML are needed, so that it runs before the project is installed.
"""
