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

var update = flag.Bool("update", false, "write the reference into docs/configuration.md")

// The first YAML of docs/configuration.md is made of the types here: their keys, comments and
// constants, and the defaults.
func TestReference(t *testing.T) {
	const path = "../docs/configuration.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := reference{source: readSource(t)}
	r.keys("", reflect.ValueOf(document{APIVersion: apiVersion, Kind: kind, Config: Default()}))
	if file, err := Parse([]byte(r.String())); err != nil || fmt.Sprint(file.base) != fmt.Sprint(Default()) {
		t.Fatalf("the reference does not hold the defaults: %v\n%s", err, r.String())
	}
	if want := []string{"apiVersion", "kind"}; !slices.Equal(r.without, want) {
		t.Errorf("without a comment are %v, want only %v", r.without, want)
	}
	before, rest, begun := strings.Cut(string(text), "```yaml\n")
	was, after, ended := strings.Cut(rest, "```")
	switch {
	case !begun || !ended:
		t.Fatalf("%s has no YAML", path)
	case *update:
		if err := os.WriteFile(path, []byte(before+"```yaml\n"+r.String()+"```"+after), 0o600); err != nil {
			t.Fatal(err)
		}
	case was != r.String():
		t.Errorf("%s is stale: make reference writes it", path)
	}
}

// source is what reflection cannot see.
type source struct {
	comments map[string]string   // of fields, by package.Type.Field
	values   map[string][]string // of types, by package.Type, each with its meaning
}

func readSource(t *testing.T) source {
	t.Helper()
	s := source{map[string]string{}, map[string][]string{}}
	var files []string
	for _, dir := range []string{".", "../allocator", "../cdi", "../kubelet"} {
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
				s.fields(file.Name.Name, n)
			case *ast.ValueSpec:
				s.value(file.Name.Name, n)
			}
			return true
		})
	}
	return s
}

func (s source) fields(pkg string, n *ast.TypeSpec) {
	of, ok := n.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, field := range of.Fields.List {
		for _, name := range field.Names {
			s.comments[pkg+"."+n.Name.Name+"."+name.Name] = oneLine(field.Doc.Text() + field.Comment.Text())
		}
	}
}

// value takes a constant of a type with a name.
func (s source) value(pkg string, n *ast.ValueSpec) {
	of, named := n.Type.(*ast.Ident)
	if !named || len(n.Values) != 1 {
		return
	}
	if literal, ok := n.Values[0].(*ast.BasicLit); ok {
		value, _ := strconv.Unquote(literal.Value)
		s.values[pkg+"."+of.Name] = append(s.values[pkg+"."+of.Name], value+": "+oneLine(n.Comment.Text()))
	}
}

// reference is YAML with comments.
type reference struct {
	source
	strings.Builder
	without []string // keys that have no comment
}

// keys writes those of a struct, each below its comment.
func (r *reference) keys(indent string, of reflect.Value) {
	for i := range of.NumField() {
		field, value := of.Type().Field(i), of.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if options == "inline" {
			r.keys(indent, value)
			continue
		}
		comment := r.comments[of.Type().String()+"."+field.Name]
		if comment != "" {
			r.comment(indent, "", comment+r.choice(field.Type))
		}
		for _, line := range r.list(field.Type) {
			r.comment(indent, "- ", line)
		}
		switch {
		case value.Kind() == reflect.Struct:
			fmt.Fprintf(r, "%s%s:\n", indent, name)
			r.keys(indent+"  ", value)
		case comment == "":
			fmt.Fprintf(r, "%s%s: %s\n", indent, name, inYAML(value))
			r.without = append(r.without, name)
		default:
			fmt.Fprintf(r, "%s%s: %s%s\n", indent, name, inYAML(value), r.typed(field.Type))
		}
	}
}

// choice introduces the values that a type has.
func (r *reference) choice(of reflect.Type) string {
	switch {
	case r.values[of.String()] != nil:
		return " One of:"
	case of.Kind() == reflect.Slice && r.values[of.Elem().String()] != nil:
		return " Any of:"
	}
	return ""
}

// typed names a type that has no values to list.
func (r *reference) typed(of reflect.Type) string {
	name, list := of.Name(), ""
	if of.Kind() == reflect.Slice {
		name, list = of.Elem().Name(), "list of "
	}
	if r.list(of) != nil || name == "" {
		return ""
	}
	return " # " + list + strings.ToLower(name)
}

// list is what a type's values can be, or what each of them has.
func (r *reference) list(of reflect.Type) (lines []string) {
	if of.Kind() != reflect.Slice {
		return r.values[of.String()]
	}
	if of.Elem().Kind() != reflect.Struct {
		return r.values[of.Elem().String()]
	}
	for i := range of.Elem().NumField() {
		field := of.Elem().Field(i)
		if comment := r.comments[of.Elem().String()+"."+field.Name]; field.Tag.Get("yaml") != "" && comment != "" {
			lines = append(lines, field.Tag.Get("yaml")+": "+comment)
		}
	}
	return lines
}

// comment writes a comment within the line width.
func (r *reference) comment(indent, bullet, text string) {
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

// inYAML writes a value on one line.
func inYAML(v reflect.Value) string {
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
