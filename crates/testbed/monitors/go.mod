// The kinds ServiceMonitor and PodMonitor, pinned: the test bed has their definitions from here. Nothing of this is shipped.
module evenkeel.dev/testbed/monitors

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
