// Command kubectl is kubectl. It is not part of the program kube, because a program with all of Kubernetes takes longer
// to start.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
)

func main() { os.Exit(cli.Run(cmd.NewDefaultKubectlCommand())) }
