package config

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write docs/configuration.md and the chart's schema")

// The reference in docs/configuration.md is generated from the keys, comments, constants and defaults of the config's
// types, in this and other packages.
func TestReference(t *testing.T) {
	const path = "../docs/configuration.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := reference{source: readSource(t)}
	r.writeKeys("", reflect.ValueOf(document{APIVersion: apiVersion, Kind: kind, Config: Default()}))
	if file, err := Parse([]byte(r.String())); err != nil || fmt.Sprint(file.base) != fmt.Sprint(Default()) {
		t.Fatalf("the reference does not parse as the default: %v\n%s", err, r.String())
	}
	if want := []string{"apiVersion", "kind"}; !slices.Equal(r.undocumented, want) {
		t.Errorf("keys without a comment: %v, want %v", r.undocumented, want)
	}
	before, rest, hasReference := strings.Cut(string(text), "\n## Reference\n")
	intro, rest, opened := strings.Cut(rest, "```yaml\n")
	current, after, closed := strings.Cut(rest, "```")
	switch {
	case !hasReference || !opened || !closed:
		t.Fatalf("%s has no YAML block under Reference", path)
	case *update:
		updated := before + "\n## Reference\n" + intro + "```yaml\n" + r.String() + "```" + after
		if err := os.WriteFile(path, []byte(updated), 0o600); err != nil {
			t.Fatal(err)
		}
	case current != r.String():
		t.Errorf("%s is stale; run make reference", path)
	}
}

// source contains the parts of the source code that reflection does not provide.
type source struct {
	comments map[string]string   // by package.Type.Field
	values   map[string][]string // constants as "value: comment", by package.Type
}

func readSource(t *testing.T) source {
	t.Helper()
	s := source{map[string]string{}, map[string][]string{}}
	var files []string
	for _, dir := range []string{".", "../allocator", "../cdi", "../kubelet", "../gpu", "../gpu/health"} {
		found, err := filepath.Glob(dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				s.addFields(file.Name.Name, n)
			case *ast.ValueSpec:
				s.addValue(file.Name.Name, n)
			}
			return true
		})
	}
	return s
}

func (s source) addFields(pkg string, n *ast.TypeSpec) {
	structType, ok := n.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, field := range structType.Fields.List {
		for _, name := range field.Names {
			s.comments[pkg+"."+n.Name.Name+"."+name.Name] = oneLine(field.Doc.Text() + field.Comment.Text())
		}
	}
}

// addValue adds a constant of a named type.
func (s source) addValue(pkg string, n *ast.ValueSpec) {
	of, named := n.Type.(*ast.Ident)
	if !named || len(n.Values) != 1 {
		return
	}
	if literal, ok := n.Values[0].(*ast.BasicLit); ok {
		value, _ := strconv.Unquote(literal.Value)
		s.values[pkg+"."+of.Name] = append(s.values[pkg+"."+of.Name], value+": "+oneLine(n.Comment.Text()))
	}
}

// reference builds YAML with comments.
type reference struct {
	source
	strings.Builder
	undocumented []string // keys without a comment
}

// writeKeys writes the keys of a struct, each after its comment.
func (r *reference) writeKeys(indent string, of reflect.Value) {
	for i := range of.NumField() {
		field, value := of.Type().Field(i), of.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if options == "inline" {
			r.writeKeys(indent, value)
			continue
		}
		comment := r.comments[of.Type().String()+"."+field.Name]
		if comment != "" {
			r.writeComment(indent, "", comment+r.introduction(field.Type))
		}
		for _, line := range r.list(field.Type) {
			r.writeComment(indent, "- ", line)
		}
		switch {
		case value.Kind() == reflect.Struct:
			fmt.Fprintf(r, "%s%s:\n", indent, name)
			r.writeKeys(indent+"  ", value)
		case comment == "":
			fmt.Fprintf(r, "%s%s: %s\n", indent, name, formatYAML(value))
			r.undocumented = append(r.undocumented, name)
		default:
			fmt.Fprintf(r, "%s%s: %s%s\n", indent, name, formatYAML(value), r.typeComment(field.Type))
		}
	}
}

// introduction is the text before the list of a type's values.
func (r *reference) introduction(of reflect.Type) string {
	switch {
	case r.values[of.String()] != nil:
		return " One of:"
	case of.Kind() == reflect.Slice && r.values[of.Elem().String()] != nil:
		return " Any of:"
	}
	return ""
}

// typeComment names a type whose values are not listed.
func (r *reference) typeComment(of reflect.Type) string {
	name, list := of.Name(), ""
	if of.Kind() == reflect.Slice {
		name, list = of.Elem().Name(), "list of "
	}
	if r.list(of) != nil || name == "" {
		return ""
	}
	if of.Kind() == reflect.Float64 {
		name = "number"
	}
	return " # " + list + strings.ToLower(name)
}

// list describes the values of a type, or the keys of its elements.
func (r *reference) list(of reflect.Type) (lines []string) {
	if of.Kind() != reflect.Slice {
		return r.values[of.String()]
	}
	if of.Elem().Kind() != reflect.Struct {
		return r.values[of.Elem().String()]
	}
	return r.keys("", of.Elem())
}

// keys describes the keys of a struct, and of structs in it.
func (r *reference) keys(prefix string, of reflect.Type) (lines []string) {
	for i := range of.NumField() {
		field := of.Field(i)
		name, comment := field.Tag.Get("yaml"), r.comments[of.String()+"."+field.Name]
		if name == "" || comment == "" {
			continue
		}
		lines = append(lines, prefix+name+": "+comment)
		if field.Type.Kind() == reflect.Struct {
			lines = append(lines, r.keys(prefix+name+".", field.Type)...)
		}
	}
	return lines
}

// writeComment wraps a comment at the line width.
func (r *reference) writeComment(indent, bullet, text string) {
	const width = 100
	line := indent + "# " + bullet
	next := indent + "# " + strings.Repeat(" ", len(bullet))
	for i, word := range strings.Fields(text) {
		if i > 0 && len(line)+len(word)+1 > width {
			fmt.Fprintln(r, line)
			line = next + word
			continue
		}
		if i > 0 {
			line += " "
		}
		line += word
	}
	fmt.Fprintln(r, line)
}

// formatYAML formats a value in one line.
func formatYAML(v reflect.Value) string {
	switch of := v.Interface().(type) {
	case time.Duration:
		return strings.Replace(of.String(), "m0s", "m", 1)
	case string:
		if of == "" {
			return `""`
		}
	}
	if v.Kind() != reflect.Slice {
		return fmt.Sprint(v)
	}
	var items []string
	for i := range v.Len() {
		items = append(items, fmt.Sprint(v.Index(i)))
	}
	return "[" + strings.Join(items, ", ") + "]"
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
