package proxy_test

import (
	"crypto/tls"
	"errors"
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// Before the command starts, every host of a placeholder is tried: what would not be
// read along refuses the run.
func TestBypass38_SelfTest(t *testing.T) {
	for name, c := range map[string]struct {
		rules  []egress.Rule
		change option
		want   string // in the error, "" for none
	}{
		"intercepted":  {[]egress.Rule{rule(t, "a.test", 443, "GET", "/**", sends), rule(t, "a.test", 8443, "GET", "/**", sends), rule(t, "b.test", 443, "", "/", tunnel)}, nil, ""},
		"at the floor": {nil, nil, "no rule in force"},
		"other rules":  {[]egress.Rule{rule(t, "a.test", 443, "GET", "/**")}, nil, "no rule in force"},
		"a tunnel":     {[]egress.Rule{rule(t, "a.test", 443, "GET", "/**", sends), rule(t, "a.test", 444, "", "/", tunnel)}, nil, "test/ lets connections through unopened"},
		"tcp":          {[]egress.Rule{rule(t, "a.test", 443, "GET", "/**", sends), rule(t, "a.test", 22, "", "/", tcp)}, nil, "unopened"},
		"no authority": {[]egress.Rule{rule(t, "a.test", 443, "GET", "/**", sends)}, func(c *proxyConfig) {
			c.Certificate = func(string) (*tls.Certificate, error) { return nil, errors.New("gone") }
		}, "gone"},
		"other leaves":  {[]egress.Rule{rule(t, "a.test", 443, "GET", "/**", sends)}, alternate(t), "not the run's"},
		"no handshakes": {[]egress.Rule{rule(t, "a.test", 443, "GET", "/**", sends)}, second(t), "not intercepted"},
	} {
		options := []option{credential(t, token, placeholder)}
		if c.change != nil {
			options = append(options, c.change)
		}
		w := newWorld(t, options...)
		if c.rules != nil {
			w.grant(c.rules...)
		}
		err := w.server.ProvePlaceholders(t.Context())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if c.want == "" && len(w.rows.all()) > 0 || w.dials.count("a.test") > 0 {
			t.Errorf("%s: rows %+v", name, w.rows.all())
		}
	}
	w := newWorld(t, credential(t, token)) // without a placeholder there is nothing to prove
	if err := w.server.ProvePlaceholders(t.Context()); err != nil {
		t.Error(err)
	}
}

// alternate gives out another leaf each time.
func alternate(t *testing.T) option {
	return func(c *proxyConfig) {
		c.Certificate = func(host string) (*tls.Certificate, error) { return authority(t).Leaf(host) }
	}
}

// second gives out a leaf only once.
func second(t *testing.T) option {
	return func(c *proxyConfig) {
		calls := 0
		c.Certificate = func(host string) (*tls.Certificate, error) {
			if calls++; calls > 1 {
				return nil, errors.New("no more")
			}
			return authority(t).Leaf(host)
		}
	}
}
