package dra

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
)

// Names of attributes. Those without a domain belong to the domain of the DRA driver, and are also used by NVIDIA's DRA
// driver.
const (
	attributeType              = "type"
	attributeUUID              = "uuid"
	attributeProductName       = "productName"
	attributeBrand             = "brand"
	attributeArchitecture      = "architecture"
	attributeComputeCapability = "cudaComputeCapability"
	attributeDriverVersion     = "driverVersion"
	attributeCUDAVersion       = "cudaDriverVersion"
	attributeAddressingMode    = "addressingMode"
	attributeParentUUID        = "parentUUID"
	attributeProfile           = "profile"

	attributePCIeRoot = "resource.kubernetes.io/pcieRoot"
	attributePCIBusID = "resource.kubernetes.io/pciBusID"
	attributeNUMANode = "resource.kubernetes.io/numaNode"

	attributeResource         = domain + "resource"
	attributeMemoryIsolation  = domain + "memoryIsolation"
	attributeComputeIsolation = domain + "computeIsolation"
	attributeNVLinkDomain     = domain + "nvlinkDomain"
	attributePCIeSwitch       = domain + "pcieSwitch"
	attributeSet              = domain + "set" // followed by the size
)

// domain is the domain of attributes and taints that NVIDIA's DRA driver does not have.
const domain = "gpucdi.dev/"

// Names of capacities.
const (
	capacityMemory          = "memory"
	capacityMultiprocessors = "multiprocessors"
	capacityCopyEngines     = "copyEngines"
	capacityDecoders        = "decoders"
	capacityEncoders        = "encoders"
	capacityJPEGEngines     = "jpegEngines"
	capacityOFAEngines      = "ofaEngines"
	capacityMemorySlice     = "memorySlice" // followed by the index

	// Of devices that claims share.
	capacityCores  = "cores"
	capacityShares = "shares" // replicas, by the name that NVIDIA's DRA driver uses
)

// Values of the attribute type.
const (
	typeGPU = "gpu"
	typeMIG = "mig"
)

// Values of attributes that the NVIDIA driver does not report for a GPU.
const (
	brandUnknown   = "Unknown"
	addressingNone = "None"
)

// attributes are the attributes of a device.
type attributes map[string]cluster.Attribute

// set sets an attribute of type string.
func (a attributes) set(name, value string) { a[name] = cluster.StringAttribute(shorten(value)) }

// addCommon adds the attributes that a GPU and its MIG devices have in common. The PCIe root and the NUMA node are
// omitted if they are unknown, since devices with equal values count as close to each other.
func (a attributes) addCommon(driver gpu.Driver, g gpu.GPU) {
	a.set(attributeProductName, g.Product)
	a.set(attributeBrand, cmp.Or(g.Brand, brandUnknown))
	a.set(attributeArchitecture, string(cmp.Or(g.Architecture, gpu.ArchitectureUnknown)))
	a.set(attributeAddressingMode, cmp.Or(g.AddressingMode, addressingNone))
	a[attributeComputeCapability] = cluster.VersionAttribute(semver(g.ComputeCapability.String()))
	a[attributeDriverVersion] = cluster.VersionAttribute(semver(driver.Version))
	a[attributeCUDAVersion] = cluster.VersionAttribute(semver(driver.CUDA.String()))
	a.set(attributePCIBusID, g.PCIBusID)
	if g.PCIeRoot != "" {
		a.set(attributePCIeRoot, g.PCIeRoot)
	}
	if g.UUID != "" && g.NUMANode != gpu.NUMAUnknown {
		a[attributeNUMANode] = cluster.IntAttribute(int64(g.NUMANode))
	}
}

// maxValue is the maximum length of the value of an attribute of type string, in bytes.
const maxValue = 64

// shorten returns a value of at most maxValue bytes. A longer one ends in a hash, so that different values differ.
func shorten(value string) string {
	if len(value) <= maxValue {
		return value
	}
	hash := fmt.Sprintf("-%x", sha256.Sum256([]byte(value)))[:17]
	end := maxValue - len(hash)
	for end > 0 && !utf8.RuneStart(value[end]) {
		end--
	}
	return value[:end] + hash
}

// semver returns a version as Semantic Versioning requires: three numbers without leading zeros. Missing numbers are 0,
// and so is everything from the first part that is not a 32-bit number. Parts after the third are dropped.
func semver(version string) string {
	var numbers [3]uint64
	for i, part := range strings.SplitN(version, ".", len(numbers)+1) {
		if i == len(numbers) {
			break
		}
		n, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			break
		}
		numbers[i] = n
	}
	return fmt.Sprintf("%d.%d.%d", numbers[0], numbers[1], numbers[2])
}
