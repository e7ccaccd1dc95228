package cluster

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const claimJSON = `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim",
"metadata":{"namespace":"ns","name":"c","uid":"claim-uid","managedFields":[{}]},
"spec":{"devices":{"requests":[{"name":"gpu"}]}},
"status":{"allocation":{"devices":{
  "results":[
    {"request":"gpu","driver":"gpu.nvidia.com","pool":"node","device":"gpu-1","shareID":"share-uid","consumedCapacity":{"memory":"1Gi"}},
    {"request":"all/admin","driver":"gpu.nvidia.com","pool":"node","device":"gpu-2","adminAccess":true,"tolerations":[{"operator":"Exists"}]},
    {"request":"nic","driver":"nic.example.com","pool":"node","device":"nic-1"}],
  "config":[
    {"source":"FromClass","opaque":{"driver":"gpu.nvidia.com","parameters":{"kind":"GpuConfig"}}},
    {"source":"FromClaim","requests":["gpu"],"opaque":{"driver":"nic.example.com","parameters":{"a":1}}}]},
  "nodeSelector":{"nodeSelectorTerms":[{}]}},
 "reservedFor":[{"resource":"pods","name":"pod","uid":"pod-uid"}]}}`

var testClaim = Claim{
	Namespace: "ns", Name: "c", UID: "claim-uid", Allocated: true,
	Devices: []ClaimDevice{
		{Request: "gpu", Driver: testDriver, Pool: "node", Device: "gpu-1", ShareID: "share-uid", Consumed: map[string]string{"memory": "1Gi"}},
		{Request: "all/admin", Driver: testDriver, Pool: "node", Device: "gpu-2", AdminAccess: true},
		{Request: "nic", Driver: "nic.example.com", Pool: "node", Device: "nic-1"},
	},
	Config: []ClaimConfig{
		{FromClass: true, Driver: testDriver, Parameters: json.RawMessage(`{"kind":"GpuConfig"}`)},
		{Requests: []string{"gpu"}, Driver: "nic.example.com", Parameters: json.RawMessage(`{"a":1}`)},
	},
	Consumers: []Consumer{{Resource: "pods", Name: "pod", UID: "pod-uid"}},
}

// serve starts an API server over TLS, and returns a client for it.
func serve(t *testing.T, handler http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	client := &Client{host: server.URL, credentials: dir}
	t.Cleanup(client.CloseIdle)
	setCA(t, client, server)
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("token"), 0o600); err != nil {
		t.Fatal(err)
	}
	return client
}

func setCA(t *testing.T, client *Client, server *httptest.Server) {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(filepath.Join(client.credentials, "ca.crt"), ca, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestClaim(t *testing.T) {
	status := func(code int, reason string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { failure(w, code, reason) }
	}
	respond := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
	}
	for name, tc := range map[string]struct {
		handler  http.HandlerFunc
		want     Claim
		err      string // empty for none
		notFound bool
	}{
		"allocated": {respond(claimJSON), testClaim, "", false},
		"pending": {
			respond(`{"metadata":{"namespace":"ns","name":"c","uid":"u"},"status":{}}`),
			Claim{Namespace: "ns", Name: "c", UID: "u"}, "", false,
		},
		"missing":       {status(http.StatusNotFound, "NotFound"), Claim{}, "404", true},
		"no DRA":        {http.NotFound, Claim{}, "404", false},
		"forbidden":     {status(http.StatusForbidden, "Forbidden"), Claim{}, "Forbidden", false},
		"another claim": {respond(`{"metadata":{"namespace":"ns","name":"d","uid":"u"}}`), Claim{}, "returned another object", false},
		"no JSON":       {respond("<html>"), Claim{}, "invalid character", false},
		"endless":       {func(w http.ResponseWriter, _ *http.Request) { endless(w, `{"metadata":{"name":"`) }, Claim{}, "exceeds", false},
	} {
		t.Run(name, func(t *testing.T) {
			client := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/c" {
					t.Errorf("request for %s", r.URL)
				}
				tc.handler(w, r)
			})
			claim, err := client.Claim(t.Context(), "ns", "c")
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) || errors.Is(err, ErrNotFound) != tc.notFound {
				t.Errorf("error %v, want %q", err, tc.err)
			}
			if !reflect.DeepEqual(claim, tc.want) {
				t.Errorf("claim %+v, want %+v", claim, tc.want)
			}
		})
	}
}

// A namespace or name cannot add segments or a query to the path of the request.
func TestClaimPath(t *testing.T) {
	client := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if want := "/apis/resource.k8s.io/v1/namespaces/..%2F..%2Fns/resourceclaims/a%2Fb%3Fc"; r.URL.EscapedPath() != want {
			t.Errorf("request for %s", r.URL.EscapedPath())
		}
	})
	if _, err := client.Claim(t.Context(), "../../ns", "a/b?c"); err == nil {
		t.Error("no error")
	}
}

// Claims share a connection until it is closed or the CA is rotated. Each request has the current token.
func TestKeepAlive(t *testing.T) {
	var tokens, connections atomic.Value
	connections.Store(0)
	handler := func(w http.ResponseWriter, r *http.Request) {
		tokens.Store(r.Header.Get("Authorization"))
		fmt.Fprint(w, claimJSON)
	}
	client := serve(t, handler)
	client.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		connections.Store(connections.Load().(int) + 1)
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	read := func(connected int) {
		t.Helper()
		if _, err := client.Claim(t.Context(), "ns", "c"); err != nil {
			t.Error(err)
		}
		if got := connections.Load().(int); got != connected {
			t.Errorf("%d connections, want %d", got, connected)
		}
	}
	for range 5 {
		read(1)
	}
	if err := os.WriteFile(filepath.Join(client.credentials, "token"), []byte("second\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	read(1)
	if got := tokens.Load(); got != "Bearer second" {
		t.Errorf("token %s", got)
	}
	client.CloseIdle()
	read(2)

	ca := filepath.Join(client.credentials, "ca.crt")
	old, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ca, append(old, old...), 0o600); err != nil {
		t.Fatal(err)
	}
	read(3)
}

// A connection that died while it was idle delays a claim by no more than the first timeout.
func TestClaimDeadConnection(t *testing.T) {
	credentials := testCredentials(t)
	synctest.Test(t, func(t *testing.T) {
		api, stop := newFakeAPI(t, credentials)
		defer stop()
		var dead atomic.Bool
		dead.Store(true)
		api.before = func(w http.ResponseWriter, r *http.Request) bool {
			if dead.Swap(false) {
				<-r.Context().Done()
			} else {
				fmt.Fprint(w, claimJSON)
			}
			return true
		}
		begin := time.Now()
		if _, err := api.client.Claim(t.Context(), "ns", "c"); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took != claimTimeout {
			t.Errorf("took %s", took)
		}
		// The caller's deadline holds.
		dead.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := api.client.Claim(ctx, "ns", "c"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestClaims(t *testing.T) {
	const count = 1250
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != claimsPath {
			t.Errorf("request for %s", r.URL)
		}
		start := 0
		_, _ = fmt.Sscan(r.URL.Query().Get("continue"), &start)
		end := min(start+500, count)
		var items []string
		for i := start; i < end; i++ {
			claim := strings.NewReplacer(`"name":"c"`, fmt.Sprintf(`"name":"c%d"`, i))
			if i%100 != 0 {
				claim = strings.NewReplacer(`"pool":"node"`, `"pool":"other"`)
			}
			items = append(items, claim.Replace(claimJSON))
		}
		next := ""
		if end < count {
			next = fmt.Sprint(end)
		}
		fmt.Fprintf(w, `{"metadata":{"continue":%q},"items":[%s]}`, next, strings.Join(items, ","))
	})
	claims, err := client.Claims(t.Context(), testDriver, "node")
	if err != nil || len(claims) != 13 {
		t.Fatalf("%d claims, error %v", len(claims), err)
	}
	want := testClaim
	want.Name, want.Devices, want.Config = "c1200", testClaim.Devices[:2], testClaim.Config[:1]
	if !reflect.DeepEqual(claims[12], want) {
		t.Errorf("claim %+v, want %+v", claims[12], want)
	}
}

func TestClaimsInUse(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case slicesPath + "/00000-" + testDriver + "-node-gpucdi":
			fmt.Fprint(w, `{}`)
			return
		case slicesPath + "/00000-" + testDriver + "-other-gpucdi":
			failure(w, http.StatusNotFound, "NotFound")
			return
		case claimsPath:
		default:
			t.Errorf("request for %s", r.URL)
		}
		var items []string
		for _, replacement := range [][2]string{
			{"", ""}, {`"pool":"node"`, `"pool":"other"`}, {`"driver":"` + testDriver, `"driver":"other.` + testDriver}, {`"reservedFor":`, `"reserved":`},
		} {
			items = append(items, strings.ReplaceAll(claimJSON, replacement[0], replacement[1]))
		}
		items[0] = claimJSON
		fmt.Fprintf(w, `{"items":[%s]}`, strings.Join(items, ","))
	})
	claims, err := client.ClaimsInUse(t.Context(), testDriver)
	if err != nil || len(claims) != 1 || claims[0].Name != testClaim.Name || claims[0].Devices[0].Pool != "node" {
		t.Fatalf("claims %+v, error %v", claims, err)
	}
}

func TestClaimsErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"forbidden": {func(w http.ResponseWriter, _ *http.Request) { failure(w, http.StatusForbidden, "Forbidden") }, "Forbidden"},
		"endless": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"metadata":{"continue":"more"},"items":[{}]}`)
		}, "exceeds"},
	} {
		t.Run(name, func(t *testing.T) {
			client := serve(t, tc.handler)
			if _, err := client.ClaimsInUse(t.Context(), testDriver); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("ClaimsInUse: error %v, want %q", err, tc.want)
			}
			_, err := client.Claims(t.Context(), testDriver, "node")
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestNodeUID(t *testing.T) {
	for name, tc := range map[string]struct{ response, want, err string }{
		"uid":    {`{"metadata":{"uid":"u"}}`, "u", ""},
		"no uid": {`{}`, "", "no UID"},
	} {
		t.Run(name, func(t *testing.T) {
			client := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/api/v1/nodes/node" {
					t.Errorf("request for %s", r.URL)
				}
				fmt.Fprint(w, tc.response)
			})
			uid, err := client.NodeUID(t.Context(), "node")
			if uid != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("NodeUID = %q, %v", uid, err)
			}
		})
	}
}
