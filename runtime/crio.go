package runtime

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/pelletier/go-toml/v2"
)

// crioConfigLimit bounds the size of CRI-O's configuration, in bytes. It is usually about 20 KiB.
const crioConfigLimit = 4 << 20

// inspectCRIO reads the configuration that CRI-O serves over HTTP on the CRI socket.
func inspectCRIO(ctx context.Context, info Info, socket string) (Info, error) {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://crio/config", nil)
	if err != nil {
		return Info{}, err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return Info{}, fmt.Errorf("getting the CRI-O config: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return Info{}, fmt.Errorf("getting the CRI-O config: HTTP status %s", response.Status)
	}
	return parseCRIOConfig(info, io.LimitReader(response.Body, crioConfigLimit))
}

// parseCRIOConfig reads the configuration. CDI cannot be disabled in CRI-O.
func parseCRIOConfig(info Info, config io.Reader) (Info, error) {
	var parsed struct {
		CRIO struct {
			Runtime struct {
				CDISpecDirs []string `toml:"cdi_spec_dirs"`
			} `toml:"runtime"`
		} `toml:"crio"`
	}
	if err := toml.NewDecoder(config).Decode(&parsed); err != nil {
		return Info{}, fmt.Errorf("decoding the config of CRI-O %s: %w", info.Version, err)
	}
	info.CDI = true
	info.SpecDirs = parsed.CRIO.Runtime.CDISpecDirs
	if len(info.SpecDirs) == 0 {
		info.SpecDirs = defaultSpecDirs
	}
	return info, nil
}
