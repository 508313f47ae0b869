package netns

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// packetLogGroup is the NFLOG group of refused packets.
const packetLogGroup = 1

// table is the one nft table of a sandbox.
var table = &nftables.Table{Family: nftables.TableFamilyINet, Name: "sbx"}

// chain is a base chain with its rules, as data.
type chain struct {
	chain *nftables.Chain
	rules [][]expr.Any
}

// ruleset is what must stand in the kernel, exactly.
func ruleset() []chain {
	drop := nftables.ChainPolicyDrop
	accept := nftables.ChainPolicyAccept
	return []chain{
		{
			chain: &nftables.Chain{
				Name: "redirect", Table: table, Type: nftables.ChainTypeNAT,
				Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest, Policy: &accept,
			},
			rules: redirectRules(),
		},
		{
			chain: &nftables.Chain{
				Name: "refuse", Table: table, Type: nftables.ChainTypeFilter,
				Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter, Policy: &drop,
			},
			rules: refuseRules(),
		},
	}
}

// redirectRules lead DNS for any server to the resolver, and TCP for any address
// but loopback to the proxy.
func redirectRules() [][]expr.Any {
	return [][]expr.Any{
		all(layer4(unix.IPPROTO_UDP), port(2, 53), redirect(PortResolver)),
		all(layer4(unix.IPPROTO_TCP), port(2, 53), redirect(PortResolver)),
		all(loopbackV4(), accepted()),
		all(loopbackV6(), accepted()),
		all(destinationV4(AddressV4), layer4(unix.IPPROTO_TCP), port(2, ProxyPort), redirect(PortExplicit)),
		all(layer4(unix.IPPROTO_TCP), redirect(PortTransparent)),
	}
}

// refuseRules see packets after the redirect. TCP that is left is the listeners'
// own; of the rest only the resolver's replies and the kernel's own errors pass.
func refuseRules() [][]expr.Any {
	const destinationUnreachableV4, destinationUnreachableV6 = 3, 1
	return [][]expr.Any{
		all(loopbackV4(), accepted()),
		all(loopbackV6(), accepted()),
		all(layer4(unix.IPPROTO_TCP), accepted()),
		all(layer4(unix.IPPROTO_UDP), port(0, PortResolver), accepted()),
		all(layer4(unix.IPPROTO_ICMP), icmpType(destinationUnreachableV4), accepted()),
		all(layer4(unix.IPPROTO_ICMPV6), icmpType(destinationUnreachableV6), accepted()),
		{
			&expr.Log{Group: packetLogGroup, Snaplen: packetLogBytes, Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN},
			&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED},
		},
	}
}

func all(parts ...[]expr.Any) []expr.Any {
	var out []expr.Any
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func equal(data ...byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

func layer4(protocol byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal(protocol)}
}

func family(f byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal(f)}
}

func bigEndian(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }

// port compares the port at an offset of the transport header: 0 source, 2 destination.
func port(offset uint32, value uint16) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
		equal(bigEndian(value)...),
	}
}

func icmpType(t byte) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1}, equal(t)}
}

func loopbackV4() []expr.Any {
	return append(family(unix.NFPROTO_IPV4),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 1}, equal(127))
}

func loopbackV6() []expr.Any {
	one := netip.IPv6Loopback().As16()
	return append(family(unix.NFPROTO_IPV6),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 24, Len: 16}, equal(one[:]...))
}

func destinationV4(a netip.Addr) []expr.Any {
	four := a.As4()
	return append(family(unix.NFPROTO_IPV4),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}, equal(four[:]...))
}

func redirect(to uint16) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: bigEndian(to)},
		&expr.Redir{RegisterProtoMin: 1, RegisterProtoMax: 1, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED},
	}
}

func accepted() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }

// loadRules replaces whatever the namespace has with the ruleset in one
// transaction, and reads it back.
func loadRules() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("opening nft: %w", err)
	}
	conn.AddTable(table)
	want := ruleset()
	for _, c := range want {
		conn.AddChain(c.chain)
		for _, r := range c.rules {
			conn.AddRule(&nftables.Rule{Table: table, Chain: c.chain, Exprs: r})
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("loading nft rules: %w", err)
	}
	return verifyRules(conn, want)
}

func verifyRules(conn *nftables.Conn, want []chain) error {
	for _, c := range want {
		got, err := conn.GetRules(table, c.chain)
		if err != nil {
			return fmt.Errorf("reading back nft chain %s: %w", c.chain.Name, err)
		}
		if len(got) != len(c.rules) {
			return fmt.Errorf("reading back nft chain %s: %d rules, loaded %d", c.chain.Name, len(got), len(c.rules))
		}
		for i, r := range got {
			if err := sameExpressions(r.Exprs, c.rules[i]); err != nil {
				return fmt.Errorf("reading back rule %d of nft chain %s: %w", i, c.chain.Name, err)
			}
		}
	}
	return nil
}

func sameExpressions(got, want []expr.Any) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d expressions, loaded %d", len(got), len(want))
	}
	for i := range got {
		g, err := expr.Marshal(byte(table.Family), got[i])
		if err != nil {
			return fmt.Errorf("encoding %T: %w", got[i], err)
		}
		w, err := expr.Marshal(byte(table.Family), want[i])
		if err != nil {
			return fmt.Errorf("encoding %T: %w", want[i], err)
		}
		if !bytes.Equal(g, w) {
			return fmt.Errorf("expression %d is %#v, loaded %#v", i, got[i], want[i])
		}
	}
	return nil
}
