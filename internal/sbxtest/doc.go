// Package sbxtest is the laboratory of the end-to-end tests: it runs the
// release binary, unchanged, as root and as an ordinary user, against real
// servers on *.test names inside a private network and mount namespace, and
// keeps a log of every packet that left.
//
// A test package that uses it hands its TestMain over, because the namespaces
// have to exist before the test binary has threads that matter:
//
//	func TestMain(m *testing.M) { os.Exit(sbxtest.Main(m)) }
//
//	func TestUnlistedHost(t *testing.T) {
//		for _, who := range sbxtest.Everyone() {
//			t.Run(who.String(), func(t *testing.T) {
//				lab := sbxtest.NewLab(t)
//				site := lab.Serve("unlisted.test", http.NotFoundHandler())
//				got := lab.Run(t, who, "sbx", "exec", "--", "curl", "-s", "https://unlisted.test/")
//				if got.Exit != 0 || len(site.Requests()) != 0 || len(lab.Dials()) != 0 { … }
//			})
//		}
//	}
//
// # What the lab looks like
//
// A process of the lab sees the machine's own files, except for a few places.
// /etc is a private copy, with the lab's /etc/hosts, /etc/resolv.conf,
// /etc/passwd and CA bundle, in which a test may write anything, such as
// /etc/sbx/config.toml (see [Lab.Configure]). /srv holds the homes, the
// projects and the binary, and /var/lib/sbx root's runs. /run is empty.
//
// Its network namespace has the addresses 10.77.0.2 and fd77::2 and a default
// route to a second namespace, the world, in which the servers listen on
// addresses that look public (11.22.33.0/24, 2a11:22:33::/64). Nothing is
// connected to the machine's own network. Every connection attempt and
// datagram that reaches the world is in [Lab.Dials], whether or not anything
// answered; every name that its DNS server was asked for is in [Lab.Lookups].
//
// Servers live in the test process: handlers are plain Go values.
//
// # Root and ordinary users
//
// Started by root, a test can run commands as both: [AsUser] is uid 61234,
// without groups or capabilities. Started by an ordinary user, the test binary
// runs itself again in a user namespace that maps only its own uid, keeps a few
// capabilities there to build the lab with, and gives none of them to the
// commands; [Everyone] is then only [AsUser]. User namespaces nest, so a
// sandbox inside is made as anywhere else.
//
// With [RealNetwork] a lab keeps the machine's own network, for tests against
// real package registries.
//
// The namespaces come from gont, whose packet capture needs libpcap's headers
// when cgo is on: end-to-end tests are run with CGO_ENABLED=0, as .ci/test does.
package sbxtest
