package proxy_test

import (
	"bufio"
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/upstream"
)

// Hosts that do not mean what they say: the proxy says yes to one, the packet goes to
// another. Each row of the list goes through every door.

// pairSite grants good.test and also.test.
func pairSite(t *testing.T) *site {
	s := newSite(t, hello, []string{"good.test", "also.test"})
	s.allow("good.test also.test", "GET", "/**")
	return s
}

// noDials checks that nothing went out to a host.
func (s *site) noDials(hosts ...string) {
	s.t.Helper()
	for _, host := range hosts {
		if n := s.dials.count(host); n != 0 {
			s.t.Errorf("%s was dialled %d times", host, n)
		}
	}
}

func checkMismatch(t *testing.T, rows []event.Request, values ...string) {
	t.Helper()
	if len(rows) != 1 || rows[0].Code != "authority-mismatch" || rows[0].Verdict != "deny" {
		t.Fatalf("rows: %+v", rows)
	}
	for _, v := range values {
		if !slices.Contains(rows[0].Authorities, v) {
			t.Errorf("%q is not among %q", v, rows[0].Authorities)
		}
	}
}

func TestBypass01_AbsoluteFormAndHostMustAgree(t *testing.T) {
	s := pairSite(t)
	eachDoor(t, func(t *testing.T, d door) {
		also := s.authority(d, "also.test")
		for _, text := range []string{
			"GET " + d.scheme + "://HOST/x HTTP/1.1\r\nHost: " + also + "\r\n\r\n",
			"GET " + d.scheme + "://" + also + "/x HTTP/1.1\r\nHost: HOST\r\n\r\n",
			"GET " + d.scheme + "://" + also + "/x HTTP/1.1\r\nHost: " + also + "\r\n\r\n", // another than the connection
			"GET " + d.scheme + "://HOST/x HTTP/1.1\r\nHost: good.test:1\r\n\r\n",
		} {
			got, rows := s.answer(d, "good.test", "GET", text)
			if got.status != 421 {
				t.Errorf("%q: %+v", text, got)
			}
			checkMismatch(t, rows)
		}
		_, rows := s.answer(d, "good.test", "GET", "GET "+d.scheme+"://HOST/x HTTP/1.1\r\nHost: "+also+"\r\n\r\n")
		checkMismatch(t, rows, "target "+d.scheme+"://"+s.authority(d, "good.test"), "Host "+also)
		other := map[string]string{"http": "https", "https": "http"}[d.scheme]
		if got, rows := s.answer(d, "good.test", "GET", "GET "+other+"://HOST/x HTTP/1.1\r\nHost: HOST\r\n\r\n"); got.status != 421 || len(rows) != 1 {
			t.Errorf("the scheme of another connection: %+v %+v", got, rows)
		}
		if got, _ := s.answer(d, "good.test", "GET", "GET "+d.scheme+"://HOST/x HTTP/1.1\r\nHost: HOST\r\n\r\n"); got.status != 200 {
			t.Errorf("one authority: %+v", got)
		}
	})
	// A request to the proxy itself has no connection's host to agree with.
	d := doors[0]
	c := s.dialExplicit()
	fmt.Fprintf(c, "GET http://%s/x HTTP/1.1\r\nHost: %s\r\n\r\n", s.authority(d, "good.test"), s.authority(d, "also.test"))
	if got := readAnswer(bufio.NewReader(c), "GET"); got.status != 421 {
		t.Errorf("explicit: %+v", got)
	}
	s.noDials("also.test")
}

func TestBypass02_ServerNameAndHostMustAgree(t *testing.T) {
	s := pairSite(t)
	eachDoor(t, func(t *testing.T, d door) {
		also := s.authority(d, "also.test")
		got, rows := s.answer(d, "good.test", "GET", "GET /x HTTP/1.1\r\nHost: "+also+"\r\n\r\n")
		if got.status != 421 {
			t.Errorf("%+v", got)
		}
		if d.scheme == "http" { // there is no server name; the address that was dialled stands for it
			checkMismatch(t, rows, "dialled "+s.authority(d, "good.test"), "Host "+also)
			return
		}
		checkMismatch(t, rows, "server name good.test", "Host "+also)
		// The other way round: an inner Host that is granted behind a server name that is not its own.
		for _, sni := range []string{"also.test", "evil.test"} {
			before := len(s.world.rows.all())
			c := s.tunnelTo(d, "good.test", sni)
			fmt.Fprintf(c, "GET /x HTTP/1.1\r\nHost: %s\r\n\r\n", s.authority(d, "good.test"))
			if got := readAnswer(bufio.NewReader(c), "GET"); got.status != 421 {
				t.Errorf("server name %s: %+v", sni, got)
			}
			checkMismatch(t, s.world.rows.all()[before:], "server name "+sni)
		}
		// HTTP/2 says its authority anew in every request.
		c := newRawH2(t, s.tunnelTo(d, "good.test", "good.test", "h2"))
		id := c.headers(t, true, ":method", "GET", ":scheme", "https", ":authority", also, ":path", "/x")
		if got := c.result(id); !strings.HasPrefix(got, "421") {
			t.Errorf("HTTP/2: %q", got)
		}
	})
	s.noDials("also.test", "evil.test")
}

// tunnelTo is a TLS connection through a door with any server name.
func (s *site) tunnelTo(d door, host, sni string, protos ...string) *tls.Conn {
	s.t.Helper()
	if d.name == "explicit CONNECT" {
		return s.overTLS(s.connect(host, s.ports["https"]), sni, protos...)
	}
	return s.rawTLS(host, sni, s.ports["https"], protos...)
}

func TestBypass04_OneAuthorityOnAConnection(t *testing.T) {
	s := pairSite(t)
	eachDoor(t, func(t *testing.T, d door) {
		before := len(s.world.rows.all())
		c := d.open(s.world, "good.test", s.ports[d.scheme])
		br := bufio.NewReader(c)
		for i, want := range []int{200, 200, 421} {
			host := []string{"good.test", "good.test", "also.test"}[i]
			fmt.Fprintf(c, "GET /x HTTP/1.1\r\nHost: %s\r\n\r\n", s.authority(d, host))
			if got := readAnswer(br, "GET"); got.status != want {
				t.Fatalf("request %d: %+v", i, got)
			}
		}
		if n := len(s.world.rows.all()) - before; n != 3 {
			t.Errorf("%d records for three requests", n)
		}
		if b, _ := io.ReadAll(br); len(b) > 0 {
			t.Errorf("the connection goes on: %q", b)
		}
	})
	s.noDials("also.test")
}

// spellings are hosts as other programs would read them; statuses are what they end as.
var spellings = map[string]string{
	"HOST":                    "200",
	"good.test":               "421", // names the default port
	"good.test:1":             "421",
	"good.test@evil.test":     "400", // bypass 12
	"good.test:443:evil":      "400",
	"evil.test\x00.good.test": "400", // bypass 5
	"good.test\x00":           "400",
	"good.test%00.evil.test":  "400",
	"evil.test/.good.test":    "400",
	"evil.test\\.good.test":   "400",
	"evil.test .good.test":    "400",
	"good.test..":             "400", // bypass 7
	".good.test":              "400",
	"[good.test]":             "400",
	"[good.test":              "400",
	"":                        "400",
	"evil.test#.good.test":    "400",
	"evil.test?.good.test":    "400",
	"0x7f.1":                  "400", // bypass 8
	"2130706433":              "400",
	"017700000001":            "400",
	"127.1":                   "400",
	"0177.0.0.1":              "400",
	"127.0.0.1":               "421",
	"[::1]":                   "421",
	"[::1%25lo]":              "400",
	"::1":                     "400",
	"good.test:00443":         "400",
	"good.test:+443":          "400",
	"good.test:":              "400",
	"gооd.test":               "421", // Cyrillic letters are other letters
}

func TestBypass05_07_08_12_SpellingsOfHost(t *testing.T) {
	s := pairSite(t)
	eachDoor(t, func(t *testing.T, d door) {
		port := s.ports[d.scheme]
		all := map[string]string{
			fmt.Sprintf("GOOD.test.:%d", port): "200", // vector 16
			fmt.Sprintf("good。test:%d", port):  "200", // an IDNA dot is a dot
		}
		maps.Copy(all, spellings)
		for spelling, status := range all {
			got, rows := s.ask(d, "good.test", "GET /x HTTP/1.1\r\nHost: "+spelling+"\r\nConnection: close\r\n\r\n")
			if !strings.HasPrefix(got, "HTTP/1.1 "+status) {
				t.Errorf("%q: %.60q, want %s", spelling, got, status)
			}
			if len(rows) != 1 || rows[0].Denied() != (status != "200") {
				t.Errorf("%q: %+v", spelling, rows)
			}
		}
	})
	s.noDials("evil.test", "127.0.0.1", "::1")
}

// A CONNECT names a host as well, and so does a server name.
func TestBypass05_07_SpellingsOfTargetsAndServerNames(t *testing.T) {
	s := pairSite(t)
	for _, target := range []string{"evil.test\x00.good.test:443", "good.test@evil.test:443", "good.test..:443", "[good.test]:443", "0x7f.1:443", "2130706433:443", "good.test:443:443"} {
		c := s.dialExplicit()
		before := len(s.world.rows.all())
		got := exchangeRaw(t, c, "CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 400 ") {
			t.Errorf("CONNECT %q: %q", target, got)
		}
		if rows := s.world.rows.all()[before:]; len(rows) != 1 || !rows[0].Denied() {
			t.Errorf("CONNECT %q: %+v", target, rows)
		}
	}
	for _, d := range doors[1:] { // over plain HTTP nobody sends one
		for _, name := range []string{"evil.test\x00.good.test", "good.test\x00", "good test", "good.test/evil", "-good.test"} {
			before := len(s.world.rows.all())
			hello := string(helloFor(strings.Repeat("n", len(name))))
			text := strings.Replace(hello, strings.Repeat("n", len(name)), name, 1)
			c := s.raw("good.test", s.ports["https"])
			if d.name == "explicit CONNECT" {
				c = s.connect("good.test", s.ports["https"])
			}
			_, _ = io.WriteString(c, text)
			if b, _ := io.ReadAll(c); len(b) > 20 { // more than an alert
				t.Errorf("%s, server name %q: %d bytes", d.name, name, len(b))
			}
			if rows := s.world.rows.recorded(before + 1)[before:]; len(rows) != 1 || !rows[0].Denied() {
				t.Errorf("%s, server name %q: %+v", d.name, name, rows)
			}
		}
	}
}

func TestBypass06_NoConnectInsideOfAnything(t *testing.T) {
	s := pairSite(t)
	eachDoor(t, func(t *testing.T, d door) {
		for _, target := range []string{"also.test:443", "evil.test:443", "HOST", "127.0.0.1:22"} {
			got, rows := s.answer(d, "good.test", "CONNECT", "CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n\r\n")
			if got.status != 403 {
				t.Errorf("%s: %+v", target, got)
			}
			denied(t, target, rows, egress.CodeConnect)
		}
	})
	s.noDials("also.test", "evil.test", "127.0.0.1")
}

// The deny floor is not missed by another spelling of its hosts.
func TestBypass07_TrailingDotsAndTheDenyFloor(t *testing.T) {
	s := newSite(t, hello, []string{"good.test", "floor.test"})
	p, err := egress.Compile(append(s.rules("good.test", "GET", "/**"), s.rules("*.sub.test", "GET", "/**")...), []egress.Host{host(t, "floor.test"), host(t, "deny.sub.test")})
	if err != nil {
		t.Fatal(err)
	}
	s.server.Apply(p)
	eachDoor(t, func(t *testing.T, d door) {
		for _, name := range []string{"floor.test", "floor.test.", "FLOOR.test", "deny.sub.test", "deny.sub.test."} {
			bare := strings.TrimSuffix(strings.ToLower(name), ".")
			text := fmt.Sprintf("GET /x HTTP/1.1\r\nHost: %s:%d\r\n\r\n", name, s.ports[d.scheme])
			got, rows := s.answer(d, bare, "GET", text)
			if got.status != 520 {
				t.Errorf("%s: %+v", name, got)
			}
			denied(t, name, rows, egress.CodeHostFloor)
		}
	})
	s.noDials("floor.test", "deny.sub.test")
}

// One of several addresses that may not be dialled refuses the host.
func TestBypass10_OneBadAddressRefusesTheHost(t *testing.T) {
	addresses := []string{"192.0.32.10", "127.0.0.1"}
	for _, order := range [][]string{addresses, {addresses[1], addresses[0]}, {"::ffff:127.0.0.1"}, {"192.0.32.10", "169.254.169.254"}, {"64:ff9b::7f00:1"}} {
		d := upstream.New(upstream.Options{Lookup: func(context.Context, string) ([]netip.Addr, error) {
			var list []netip.Addr
			for _, a := range order {
				list = append(list, netip.MustParseAddr(a))
			}
			return list, nil
		}})
		s := newSite(t, hello, []string{"good.test"}, func(c *proxyConfig) { c.Vet, c.Dial = d.Vet, d.Dial })
		s.allow("good.test", "GET", "/**", func(r *egress.Rule) { r.Internal = false })
		eachDoor(t, func(t *testing.T, d door) {
			got, rows := s.answer(d, "good.test", "GET", "GET /x HTTP/1.1\r\nHost: HOST\r\n\r\n")
			if got.status != 403 {
				t.Errorf("%v: %+v", order, got)
			}
			denied(t, strings.Join(order, " "), rows, egress.CodeAddressRefused)
		})
	}
}

func TestBypass11_AddressesNeedAGrantOfTheirOwn(t *testing.T) {
	s := newSite(t, hello, []string{"127.0.0.1", "good.test"})
	s.allow("good.test", "GET", "/**")
	eachDoor(t, func(t *testing.T, d door) {
		got, rows := s.answer(withoutName(d), "127.0.0.1", "GET", "GET /x HTTP/1.1\r\nHost: HOST\r\n\r\n")
		if got.status != 520 {
			t.Errorf("%+v", got)
		}
		denied(t, "the address", rows, egress.CodeHostNotGranted)
		if len(rows) == 1 && (rows[0].Host != "127.0.0.1" || rows[0].Method != "GET") {
			t.Errorf("%+v", rows)
		}
		// The granted name at an address that it was not given by us.
		got, rows = s.answer(withoutName(d), "127.0.0.1", "GET", fmt.Sprintf("GET /x HTTP/1.1\r\nHost: good.test:%d\r\n\r\n", s.ports[d.scheme]))
		if got.status != 421 {
			t.Errorf("the name at an address: %+v", got)
		}
		checkMismatch(t, rows)
	})
	s.noDials("127.0.0.1")
	s.allow("127.0.0.1", "GET", "/**")
	eachDoor(t, func(t *testing.T, d door) {
		if got, _ := s.answer(withoutName(d), "127.0.0.1", "GET", "GET /x HTTP/1.1\r\nHost: HOST\r\n\r\n"); got.status != 200 {
			t.Errorf("granted: %+v", got)
		}
	})
}

// withoutName is a door whose TLS sends no server name, as for addresses.
func withoutName(d door) door {
	switch d.name {
	case "transparent TLS":
		d.open = func(w *world, host string, port uint16) net.Conn { return w.rawTLS(host, "", port) }
	case "explicit CONNECT":
		d.open = func(w *world, host string, port uint16) net.Conn { return w.overTLS(w.connect(host, port), "") }
	}
	return d
}

// A handshake that begins twice, or hides its name, ends nowhere else than it says.
func TestBypass13_InterceptedHandshakes(t *testing.T) {
	s := pairSite(t)
	for _, d := range doors[1:] { // plain HTTP has no handshake
		t.Run(d.name, func(t *testing.T) {
			open := func() net.Conn {
				if d.name == "explicit CONNECT" {
					return s.connect("good.test", s.ports["https"])
				}
				return s.raw("good.test", s.ports["https"])
			}
			// The proxy has no post-quantum exchange: another hello is asked for, and the client changes its name.
			cfg := &tls.Config{ServerName: "good.test", RootCAs: s.roots(), CurvePreferences: []tls.CurveID{tls.X25519MLKEM768, tls.CurveP384}}
			c := tls.Client(open(), cfg)
			if err := c.Handshake(); err != nil || !c.ConnectionState().HelloRetryRequest {
				t.Fatalf("an honest retry: %v", err)
			}
			if err := tls.Client(&rewriter{Conn: open(), from: "good.test", to: "evil.test"}, cfg).Handshake(); err == nil {
				t.Error("a second ClientHello with another name went through")
			}
			// An encrypted hello shows the name of its front only, which is not the host's.
			outer := tls.Client(open(), &tls.Config{ServerName: "inner.test", InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, EncryptedClientHelloConfigList: echConfig(t, "front.test")})
			err := outer.Handshake()
			if err == nil {
				fmt.Fprintf(outer, "GET /x HTTP/1.1\r\nHost: %s\r\n\r\n", s.authority(d, "good.test"))
				got := readAnswer(bufio.NewReader(outer), "GET")
				err = fmt.Errorf("%d", got.status)
				if got.status == 200 {
					t.Error("an encrypted hello was served")
				}
			}
			rows := s.world.rows.all()
			if last := rows[len(rows)-1]; !last.Denied() {
				t.Errorf("after %v: %+v", err, last)
			}
		})
	}
	s.noDials("evil.test", "inner.test", "front.test")
}

// An encrypted ClientHello is no way into a tunnel either.
func TestBypass13_NoEncryptedHelloInATunnel(t *testing.T) {
	w := newWorld(t)
	w.grant(rule(t, "front.test", 443, "GET", "/**", tunnel))
	for name, c := range map[string]net.Conn{"transparent": w.raw("front.test", 443), "CONNECT": w.connect("front.test", 443)} {
		before := len(w.rows.all())
		err := tls.Client(c, &tls.Config{ServerName: "inner.test", InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, EncryptedClientHelloConfigList: echConfig(t, "front.test")}).Handshake()
		if err == nil {
			t.Errorf("%s: a handshake", name)
		}
		denied(t, name, w.rows.recorded(before + 1)[before:], egress.CodeNotTLS)
	}
	if w.dials.count("front.test") != 0 {
		t.Error("dialled")
	}
}

// echConfig is a list of one configuration for encrypted hellos behind a public name.
func echConfig(t *testing.T, public string) []byte {
	t.Helper()
	key := publicKey(t)
	var c []byte
	c = append(c, 7, 0, 0x20, 0, 32) // id, DHKEM(X25519, HKDF-SHA256), key
	c = append(c, key...)
	c = append(c, 0, 4, 0, 1, 0, 1) // HKDF-SHA256, AES-128-GCM
	c = append(c, 0, byte(len(public)))
	c = append(c, public...)
	c = append(c, 0, 0)
	list := append([]byte{0xfe, 0x0d, 0, byte(len(c))}, c...)
	return append([]byte{0, byte(len(list))}, list...)
}

// publicKey is the public half of an X25519 key.
func publicKey(t *testing.T) []byte {
	t.Helper()
	k, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k.PublicKey().Bytes()
}
