"""Agents as pods: one Job per attempt, made, watched, read and removed through the API server.

`manifests` says what is sent, `status` what the cluster's answers mean; both are pure. `api` speaks HTTP, `view` keeps
what the cluster has by watching it, and `runner` takes one rollout through it.
"""
