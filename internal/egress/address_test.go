package egress_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// levels says from which allowance on an address may be dialled.
type levels struct{ public, registry, internal bool }

var (
	always       = levels{true, true, true}
	fromRegistry = levels{false, true, true}
	onlyInternal = levels{false, false, true}
	refused      = levels{}
)

func checkLevels(t *testing.T, addr netip.Addr, want levels) {
	t.Helper()
	for allow, ok := range map[egress.AddressAllowance]bool{
		egress.AllowPublic: want.public, egress.AllowRegistry: want.registry, egress.AllowInternal: want.internal,
	} {
		err := egress.CheckAddress(addr, allow)
		if (err == nil) != ok {
			t.Errorf("CheckAddress(%s, %d) = %v, want allowed %v", addr, allow, err, ok)
		}
		if err != nil {
			if _, typed := errors.AsType[*egress.AddressError](err); !typed {
				t.Errorf("CheckAddress(%s, %d): %T", addr, allow, err)
			}
		}
	}
}

// TestBypass08_CheckAddress has each range with its first and last address and
// its neighbours, alone and in every form that carries an IPv4 address.
func TestBypass08_CheckAddress(t *testing.T) {
	v4 := map[string]levels{
		"8.8.8.8": always, "1.0.0.0": always, "9.255.255.255": always, "11.0.0.0": always, "100.63.255.255": always, "100.128.0.0": always,
		"126.255.255.255": always, "128.0.0.0": always, "169.253.255.255": always, "169.255.0.0": always, "172.15.255.255": always, "172.32.0.0": always,
		"192.0.1.0": always, "192.167.255.255": always, "192.169.0.0": always, "198.17.255.255": always, "198.20.0.0": always, "223.255.255.255": always,
		"0.0.0.0": refused, "0.255.255.255": refused,
		"10.0.0.0": fromRegistry, "10.255.255.255": fromRegistry, "172.16.0.0": fromRegistry, "172.31.255.255": fromRegistry,
		"192.168.0.0": fromRegistry, "192.168.255.255": fromRegistry,
		"192.0.2.1": fromRegistry, "198.51.100.7": fromRegistry, "203.0.113.255": fromRegistry,
		"100.64.0.0": onlyInternal, "100.127.255.255": onlyInternal,
		"127.0.0.1": onlyInternal, "127.255.255.255": onlyInternal,
		"169.254.0.1": onlyInternal, "169.254.255.255": onlyInternal,
		"192.0.0.1": onlyInternal, "192.88.99.1": onlyInternal, "198.18.0.0": onlyInternal, "198.19.255.255": onlyInternal,
		"224.0.0.1": onlyInternal, "239.255.255.255": onlyInternal, "240.0.0.1": onlyInternal, "255.255.255.255": onlyInternal,
		"169.254.169.254": refused, "169.254.169.253": refused, "169.254.170.2": refused, "169.254.170.23": refused,
		"100.100.100.200": refused, "192.0.0.192": refused, "168.63.129.16": refused,
	}
	for text, want := range v4 {
		addr := netip.MustParseAddr(text)
		checkLevels(t, addr, want)
		b := addr.As4()
		mapped := netip.AddrFrom16(addr.As16())
		checkLevels(t, mapped, want)
		nat64 := netip.MustParseAddr("64:ff9b::").As16()
		copy(nat64[12:], b[:])
		checkLevels(t, netip.AddrFrom16(nat64), want)
		sixToFour := [16]byte{0x20, 0x02, b[0], b[1], b[2], b[3]}
		checkLevels(t, netip.AddrFrom16(sixToFour), want)
		checkTranslated(t, b, want)
	}
}

// checkTranslated has the forms that are not global themselves: never wider than
// what they carry, never open by default.
func checkTranslated(t *testing.T, b [4]byte, want levels) {
	t.Helper()
	teredo := netip.MustParseAddr("2001:0:808:808::").As16()
	for i := range b {
		teredo[12+i] = ^b[i]
	}
	local := netip.MustParseAddr("64:ff9b:1::").As16()
	copy(local[12:], b[:])
	isatap := netip.MustParseAddr("fd00::5efe:0:0").As16()
	copy(isatap[12:], b[:])
	for _, form := range [][16]byte{teredo, isatap} {
		addr := netip.AddrFrom16(form)
		if egress.CheckAddress(addr, egress.AllowPublic) == nil {
			t.Errorf("%s is allowed by default", addr)
		}
		if err := egress.CheckAddress(addr, egress.AllowInternal); (err == nil) != want.internal {
			t.Errorf("%s: %v", addr, err)
		}
	}
	if egress.CheckAddress(netip.AddrFrom16(local), egress.AllowRegistry) == nil {
		t.Errorf("%s is allowed for registries", netip.AddrFrom16(local))
	}
}

func TestCheckAddressV6(t *testing.T) {
	for text, want := range map[string]levels{
		"2606:4700::1": always, "2a00:1450::1": always, "2001:200::1": always,
		"::": refused, "::1": onlyInternal,
		"fc00::1": fromRegistry, "fdff:ffff::1": fromRegistry, "2001:db8::1": fromRegistry, "3fff::1": fromRegistry,
		"fe80::1": onlyInternal, "febf::1": onlyInternal, "fec0::1": onlyInternal, "ff02::1": onlyInternal,
		"2001:2::1": onlyInternal, "2001:10::1": onlyInternal, "100::1": onlyInternal, "5f00::1": onlyInternal, "4000::1": onlyInternal,
		"fd00:ec2::254": refused, "fd00:ec2::23": refused, "fd20:ce::254": refused, "::ffff:169.254.169.254": refused, "::169.254.169.254": refused,
		"64:ff9b::a9fe:a9fe": refused, "2002:a9fe:a9fe::1": refused, "::127.0.0.1": onlyInternal,
		"64:ff9b:1:a9fe:a9:fe00::": refused, // metadata behind the local NAT64 prefix, 48 bits
		"64:ff9b:1::a9fe:a9fe":     refused, // and 96 bits
	} {
		checkLevels(t, netip.MustParseAddr(text), want)
	}
	checkLevels(t, netip.Addr{}, refused)
	checkLevels(t, netip.MustParseAddr("fe80::1%eth0"), refused)
	checkLevels(t, netip.MustParseAddr("2606:4700::1%eth0"), refused)
}
