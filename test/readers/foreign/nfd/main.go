// Command nfd prints the labels that Node Feature Discovery reads from feature files. NFD has no flag for
// their directory: -ldflags sets the variable that contains it.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"sigs.k8s.io/node-feature-discovery/source"
	"sigs.k8s.io/node-feature-discovery/source/local"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	features, labels := source.GetFeatureSource(local.Name), source.GetLabelSource(local.Name)
	if features == nil || labels == nil {
		return errors.New("NFD has no local source")
	}
	if err := features.Discover(); err != nil {
		return err
	}
	found, err := labels.GetLabels()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}
