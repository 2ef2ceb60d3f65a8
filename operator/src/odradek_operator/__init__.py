"""The operator: custom resources to Kubernetes objects and znodes, and their state back."""
