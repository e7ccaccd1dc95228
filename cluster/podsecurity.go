package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
)

// PodSecurity has the fields of a pod that decide whether its processes are root on the node.
type PodSecurity struct {
	UID       string
	HostUsers bool // the pod has no user namespace: root of a container is root on the node

	// RootContainers are the containers that may run as root or become root: their allowPrivilegeEscalation is not
	// false, or neither runAsNonRoot nor a runAsUser other than 0 applies. A container's settings override the pod's.
	RootContainers []string
}

// Root reports whether a process of the pod may be root on the node.
func (p PodSecurity) Root() bool { return p.HostUsers && len(p.RootContainers) > 0 }

// PodSecurity returns the security settings of a pod.
func (c *Client) PodSecurity(ctx context.Context, namespace, name string) (PodSecurity, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var p PodSecurity
	address := c.host + "/api/v1/namespaces/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(name)
	if err := get(ctx, c.reuse, address, "application/json", objectLimit, &p); err != nil {
		return PodSecurity{}, fmt.Errorf("reading pod %s/%s: %w", namespace, name, err)
	}
	return p, nil
}

// userSettings are the settings of a pod or container. nil: not set.
type userSettings struct {
	RunAsNonRoot *bool  `json:"runAsNonRoot"`
	RunAsUser    *int64 `json:"runAsUser"`

	// AllowPrivilegeEscalation is a field of containers only. Unless it is false, a program with the setuid bit or with
	// file capabilities can become root. The API server refuses false for privileged containers.
	AllowPrivilegeEscalation *bool `json:"allowPrivilegeEscalation"`
}

// nonRoot reports whether a container with these settings can neither run as root nor become root. Its own settings
// override those of its pod.
func (u userSettings) nonRoot(pod userSettings) bool {
	if u.AllowPrivilegeEscalation == nil || *u.AllowPrivilegeEscalation {
		return false
	}
	user, required := u.RunAsUser, u.RunAsNonRoot
	if user == nil {
		user = pod.RunAsUser
	}
	if required == nil {
		required = pod.RunAsNonRoot
	}
	return user != nil && *user != 0 || required != nil && *required
}

// UnmarshalJSON decodes a Pod.
func (p *PodSecurity) UnmarshalJSON(data []byte) error {
	type container struct {
		Name            string       `json:"name"`
		SecurityContext userSettings `json:"securityContext"`
	}
	var object struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
		Spec struct {
			HostUsers           *bool        `json:"hostUsers"`
			SecurityContext     userSettings `json:"securityContext"`
			InitContainers      []container  `json:"initContainers"`
			Containers          []container  `json:"containers"`
			EphemeralContainers []container  `json:"ephemeralContainers"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	*p = PodSecurity{UID: object.Metadata.UID, HostUsers: object.Spec.HostUsers == nil || *object.Spec.HostUsers}
	for _, containers := range [][]container{object.Spec.InitContainers, object.Spec.Containers, object.Spec.EphemeralContainers} {
		for _, c := range containers {
			if !c.SecurityContext.nonRoot(object.Spec.SecurityContext) {
				p.RootContainers = append(p.RootContainers, c.Name)
			}
		}
	}
	return nil
}
