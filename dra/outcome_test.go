package dra

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/metrics.md describes each kind of refusal. A kind that is missing in Refusals would have no counter at first.
func TestRefusalsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "| reason | a claim is refused because |\n|---|---|\n")
	section, _, _ = strings.Cut(section, "\n\n")
	var documented []Refusal
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1) {
		documented = append(documented, Refusal(row[1]))
	}
	got := Refusals()
	slices.Sort(got)
	slices.Sort(documented)
	if !slices.Equal(got, documented) {
		t.Errorf("refusals %v, documented %v", got, documented)
	}
}
