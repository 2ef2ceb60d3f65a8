"""Ships the log files of a Kubernetes cluster's own components to a topic."""
