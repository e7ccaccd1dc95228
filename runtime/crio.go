package runtime

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/pelletier/go-toml/v2"
)

// crioConfigLimit bounds what is read of CRI-O's configuration, which is some
// 20 KiB.
const crioConfigLimit = 4 << 20

// crio reads CRI-O's configuration, which it serves over HTTP on the same
// socket. Its CDI cannot be turned off.
func crio(ctx context.Context, info Info, socket string) (Info, error) {
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
		return Info{}, fmt.Errorf("asking for its configuration: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return Info{}, fmt.Errorf("asking for its configuration: it answers %s", response.Status)
	}
	return crioConfig(info, io.LimitReader(response.Body, crioConfigLimit))
}

func crioConfig(info Info, config io.Reader) (Info, error) {
	var said struct {
		CRIO struct {
			Runtime struct {
				CDISpecDirs []string `toml:"cdi_spec_dirs"`
			} `toml:"runtime"`
		} `toml:"crio"`
	}
	if err := toml.NewDecoder(config).Decode(&said); err != nil {
		return Info{}, fmt.Errorf("reading the configuration that CRI-O %s gives: %w", info.Version, err)
	}
	info.CDI = true
	info.SpecDirs = said.CRIO.Runtime.CDISpecDirs
	if len(info.SpecDirs) == 0 {
		info.SpecDirs = defaultSpecDirs
	}
	return info, nil
}
