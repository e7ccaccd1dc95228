// Command rules validates alerting rules on standard input as Prometheus does. It rejects unknown fields.
package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	if err := validate(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func validate(in io.Reader) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	const ignoreUnknownFields = false
	_, errs := rulefmt.Parse(text, ignoreUnknownFields, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.Default())
	return errors.Join(errs...)
}
