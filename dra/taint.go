package dra

import (
	"regexp"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
)

// Keys of taints that NVIDIA's DRA driver also uses, with the same meaning.
const (
	taintXID     = "gpu.nvidia.com/xid" // the value is the XID
	taintGPULost = "gpu.nvidia.com/gpu-lost"
)

var xidCode = regexp.MustCompile(`^xid_([0-9]{1,10})$`)

// taint returns the taint of a device with a fault. A cordon never evicts pods.
func taint(code gpu.FaultCode, effect cluster.TaintEffect) cluster.Taint {
	if code == gpu.FaultCordoned {
		effect = cluster.NoSchedule
	}
	t := cluster.Taint{Key: domain + string(code), Effect: effect}
	if xid := xidCode.FindStringSubmatch(string(code)); xid != nil {
		t.Key, t.Value = taintXID, xid[1]
	} else if code == gpu.FaultGone {
		t.Key = taintGPULost
	}
	return t
}
