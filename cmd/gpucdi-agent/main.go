// Command gpucdi-agent has the commands of gpucdi for nodes of Kubernetes. gpucdi,
// which people type, runs it from the directory that it stands in itself.
package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gpucdi/gpucdi/cmd/internal/cli"
)

func main() {
	root := &cobra.Command{Short: "The commands of gpucdi for nodes of Kubernetes"}
	root.AddCommand(newServeCommand(), newStatusCommand(), newDoctorCommand(), newUnlabelCommand())
	cli.Main(context.Background(), root)
}
