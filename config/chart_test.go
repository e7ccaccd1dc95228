package config

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"
)

// The chart's schema rejects keys that it does not list.
func TestChartSchemaListsEveryKey(t *testing.T) {
	data, err := os.ReadFile("../deploy/gpucdi/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Config struct {
				Properties map[string]any `json:"properties"`
			} `json:"config"`
		} `json:"properties"`
	}
	if err := json.Unmarshal(data, &schema); err != nil {
		t.Fatal(err)
	}
	for field := range reflect.TypeFor[Config]().Fields() {
		key, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if schema.Properties.Config.Properties[key] == nil {
			t.Errorf("deploy/gpucdi/values.schema.json lacks config.%s", key)
		}
	}
}
