package egress

import (
	"fmt"
	"net/netip"
)

// AddressError says why an address may not be dialled.
type AddressError struct {
	Addr  netip.Addr
	Range string // what kind of range it lies in, as in "loopback"
}

func (e *AddressError) Error() string {
	return fmt.Sprintf("address %s is refused: %s", e.Addr, e.Range)
}

// addressRange is a special range and the least allowance that opens it.
type addressRange struct {
	prefix netip.Prefix
	name   string
	needs  AddressAllowance
}

// never opens to no allowance.
const never = AllowInternal + 1

// special lists the ranges that are not globally reachable (IANA special-purpose
// address registries) and the metadata addresses of clouds. The first match
// counts, so metadata comes first.
var special = []addressRange{
	{netip.MustParsePrefix("169.254.169.254/32"), "cloud metadata", never}, // AWS, Azure, GCP and most others
	{netip.MustParsePrefix("169.254.169.253/32"), "cloud metadata", never}, // AWS resolver
	{netip.MustParsePrefix("169.254.169.123/32"), "cloud metadata", never}, // AWS time
	{netip.MustParsePrefix("169.254.170.0/24"), "cloud metadata", never},   // AWS task and pod credentials
	{netip.MustParsePrefix("169.254.0.23/32"), "cloud metadata", never},    // Tencent
	{netip.MustParsePrefix("169.254.10.10/32"), "cloud metadata", never},   // Tencent
	{netip.MustParsePrefix("100.100.100.200/32"), "cloud metadata", never}, // Alibaba
	{netip.MustParsePrefix("192.0.0.192/32"), "cloud metadata", never},     // Oracle
	{netip.MustParsePrefix("168.63.129.16/32"), "cloud metadata", never},   // Azure host agent
	{netip.MustParsePrefix("fd00:ec2::/32"), "cloud metadata", never},      // AWS
	{netip.MustParsePrefix("fd20:ce::254/128"), "cloud metadata", never},   // GCP
	{netip.MustParsePrefix("fd00:42::42/128"), "cloud metadata", never},    // Scaleway
	{netip.MustParsePrefix("fd00:c1::a9fe:a9fe/128"), "cloud metadata", never},

	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified", never},
	{netip.MustParsePrefix("10.0.0.0/8"), "private", AllowRegistry},
	{netip.MustParsePrefix("100.64.0.0/10"), "carrier-grade NAT", AllowInternal},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback", AllowInternal},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local", AllowInternal},
	{netip.MustParsePrefix("172.16.0.0/12"), "private", AllowRegistry},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved", AllowInternal},
	{netip.MustParsePrefix("192.0.2.0/24"), "documentation", AllowRegistry},
	{netip.MustParsePrefix("192.88.99.0/24"), "reserved", AllowInternal},
	{netip.MustParsePrefix("192.168.0.0/16"), "private", AllowRegistry},
	{netip.MustParsePrefix("198.18.0.0/15"), "benchmark", AllowInternal},
	{netip.MustParsePrefix("198.51.100.0/24"), "documentation", AllowRegistry},
	{netip.MustParsePrefix("203.0.113.0/24"), "documentation", AllowRegistry},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast", AllowInternal},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved", AllowInternal},

	{netip.MustParsePrefix("::/128"), "unspecified", never},
	{netip.MustParsePrefix("::1/128"), "loopback", AllowInternal},
	{netip.MustParsePrefix("2001:2::/48"), "benchmark", AllowInternal},
	{netip.MustParsePrefix("2001::/23"), "reserved", AllowInternal}, // Teredo, ORCHID and other protocol assignments
	{netip.MustParsePrefix("2001:db8::/32"), "documentation", AllowRegistry},
	{netip.MustParsePrefix("3fff::/20"), "documentation", AllowRegistry},
	{netip.MustParsePrefix("fc00::/7"), "private", AllowRegistry},
	{netip.MustParsePrefix("fe80::/10"), "link-local", AllowInternal},
	{netip.MustParsePrefix("ff00::/8"), "multicast", AllowInternal},
}

var (
	globalV6   = netip.MustParsePrefix("2000::/3")
	compatible = netip.MustParsePrefix("::/96")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	nat64Local = netip.MustParsePrefix("64:ff9b:1::/48")
	teredo     = netip.MustParsePrefix("2001::/32")
)

// CheckAddress says whether a resolved address may be dialled under an
// allowance: nil, or an *AddressError. IPv4 addresses inside IPv6 forms (mapped,
// compatible, 6to4, NAT64, Teredo, ISATAP) are judged as well. Addresses of the
// host itself are not known here: the dialer checks those.
func CheckAddress(addr netip.Addr, allow AddressAllowance) error {
	if !addr.IsValid() || addr.Zone() != "" {
		return &AddressError{Addr: addr, Range: "not a plain address"}
	}
	if err := checkOne(addr.Unmap(), allow); err != nil {
		return &AddressError{Addr: addr, Range: err.Range}
	}
	for _, inner := range Embedded(addr.Unmap()) {
		if err := checkOne(inner, allow); err != nil {
			return &AddressError{Addr: addr, Range: fmt.Sprintf("%s, as a form of %s", err.Range, inner)}
		}
	}
	return nil
}

func checkOne(addr netip.Addr, allow AddressAllowance) *AddressError {
	for _, r := range special {
		if r.prefix.Contains(addr) {
			if allow >= r.needs {
				return nil
			}
			return &AddressError{Addr: addr, Range: r.name}
		}
	}
	if addr.Is6() && !globalV6.Contains(addr) && !nat64.Contains(addr) && allow < AllowInternal {
		return &AddressError{Addr: addr, Range: "reserved"}
	}
	return nil
}

// Embedded returns the IPv4 addresses that a translated form carries: 6to4, NAT64,
// Teredo, ISATAP and IPv4-compatible ones (RFC 3056, 6052, 8215, 4380, 5214, 4291).
func Embedded(addr netip.Addr) []netip.Addr {
	if addr.Is4() {
		return nil
	}
	b := addr.As16()
	last := netip.AddrFrom4([4]byte(b[12:]))
	switch {
	case sixToFour.Contains(addr):
		return []netip.Addr{netip.AddrFrom4([4]byte(b[2:6]))}
	case nat64.Contains(addr), compatible.Contains(addr) && addr != netip.IPv6Loopback() && addr != netip.IPv6Unspecified():
		return []netip.Addr{last}
	case nat64Local.Contains(addr):
		return embeddedLocal(b)
	case teredo.Contains(addr):
		client := netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})
		return []netip.Addr{netip.AddrFrom4([4]byte(b[4:8])), client}
	case b[8]&^2 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe: // ISATAP, RFC 5214
		return []netip.Addr{last}
	}
	return nil
}

// embeddedLocal reads the places for prefixes of 48, 56, 64 and 96 bits; byte 8
// is skipped (RFC 6052 section 2.2).
func embeddedLocal(b [16]byte) []netip.Addr {
	return []netip.Addr{
		netip.AddrFrom4([4]byte{b[6], b[7], b[9], b[10]}),
		netip.AddrFrom4([4]byte{b[7], b[9], b[10], b[11]}),
		netip.AddrFrom4([4]byte{b[9], b[10], b[11], b[12]}),
		netip.AddrFrom4([4]byte(b[12:])),
	}
}
