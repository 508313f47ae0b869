package proxy_test

import (
	"strings"
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// oddTargets are paths that two readers could take for different ones.
var oddTargets = []string{
	"/allowed/..;/x", "/allowed/..;a=b/x", "/allowed/.;/x", "/allowed/%2e%2e/x", "/allowed/.%2e/x", "/allowed/%2E./x", "/allowed/%252e%252e/x",
	"/allowed/%25252e%25252e/x", "/allowed/..%2fx", "/allowed/%2e%2e%2fx", "/allowed/..%252fx", "/allowed/..\\x", "/allowed/..%5cx", "/allowed/%5c..%5cx",
	"/allowed//x", "//allowed/x", "/allowed/%00", "/allowed/x%00.js", "/allowed/%0d%0aX:y", "/%61llowed/../x", "/allowed/./x", "/allowed/%2e/x", "/allowed/..",
	"/allowed/%c0%ae%c0%ae/x", "/allowed/%ef%bc%8e%ef%bc%8e/x", "/allowed/%zz", "/allowed/%", "/allowed/%2", "/allowed/a%25%32%65b", "*",
}

// otherTargets are paths that only look like a granted one.
var otherTargets = []string{"/Allowed/x", "/allowedx", "/allowed-evil/x", "/allowe%64x/x", "/x/allowed/y", "/", "/allowe"}

// What cannot be read in one way is refused; what can is sent as it was written.
func TestBypass09_14_15_SpellingsOfPath(t *testing.T) {
	s := newSite(t, hello, []string{"ok.test"})
	s.allow("ok.test", "GET", "/allowed/**")
	eachDoor(t, func(t *testing.T, d door) {
		for code, targets := range map[egress.Code][]string{egress.CodePathMalformed: oddTargets, egress.CodePath: otherTargets} {
			for _, target := range targets {
				got, rows := s.answer(d, "ok.test", "GET", "GET "+target+" HTTP/1.1\r\nHost: HOST\r\n\r\n")
				if got.status != 403 {
					t.Errorf("%s: %+v", target, got)
				}
				denied(t, target, rows, code)
			}
		}
		for _, target := range []string{"/%61llowed/x%20y", "/allowed/a..b/...", "/allowed/x?../../y", "/allowed/?a=%2e%2e", "/allowed/a;b=c/d", "/allowed/%7Ex"} {
			if got, _ := s.answer(d, "ok.test", "GET", "GET "+target+" HTTP/1.1\r\nHost: HOST\r\n\r\n"); got.body != "hello GET "+target {
				t.Errorf("%s: %+v", target, got)
			}
		}
		if d.scheme == "https" {
			c := newRawH2(t, s.tunnelTo(d, "ok.test", "ok.test", "h2"))
			for _, target := range oddTargets {
				id := c.headers(t, true, ":method", "GET", ":scheme", "https", ":authority", s.authority(d, "ok.test"), ":path", target)
				if got := c.result(id); !strings.HasPrefix(got, "403") {
					t.Errorf("HTTP/2, %s: %q", target, got)
				}
			}
		}
	})
}

// An encoded slash counts only where a rule says so, and only inside of one segment.
func TestBypass16_EncodedSlash(t *testing.T) {
	s := newSite(t, hello, []string{"ok.test"})
	plain := func(r *egress.Rule) {
		r.EncodedSlash = false
		p, err := egress.ParsePathPattern("/plain/**", false)
		if err != nil {
			t.Fatal(err)
		}
		r.Path = p
	}
	s.grant(append(s.rules("ok.test", "GET", "/scope/@types%2f*"), s.rules("ok.test", "GET", "/", plain)...)...)
	eachDoor(t, func(t *testing.T, d door) {
		for target, status := range map[string]int{
			"/scope/@types%2fnode": 200, "/scope/@types%2Fnode": 200, "/scope/%40types%2fnode": 200, "/plain/x": 200,
			"/scope/@types/node": 403, "/scope/@types%252fnode": 403, "/scope/@types%2f..%2f..%2fadmin": 403, "/scope/@types%5cnode": 403,
			"/scope/@typesX%2fnode": 403, "/scope/@types%2fnode%2fx": 403, "/scope/@types%2f": 403, "/scope%2f@types%2fnode": 403, "/plain/a%2fb": 403, "/plain%2fx": 403,
		} {
			got, rows := s.answer(d, "ok.test", "GET", "GET "+target+" HTTP/1.1\r\nHost: HOST\r\n\r\n")
			if got.status != status || len(rows) != 1 || status == 200 && got.body != "hello GET "+target {
				t.Errorf("%s: %+v %+v", target, got, rows)
			}
		}
	})
}

// A prefix ends at the edge of a segment.
func TestBypass22_PrefixesEndAtSegments(t *testing.T) {
	s := newSite(t, hello, []string{"ok.test"})
	s.allow("ok.test", "GET", "/repos/myorg/**")
	eachDoor(t, func(t *testing.T, d door) {
		for target, status := range map[string]int{
			"/repos/myorg": 200, "/repos/myorg/": 200, "/repos/myorg/x": 200, "/repos/myorg-evil": 403, "/repos/myorg-evil/x": 403, "/repos/myorg.git/x": 403,
			"/repos/myorg%2fx": 403, "/repos/myorg%2dx/y": 403, "/repos/myorg;x/y": 403, "/repos/myorg%3bx/y": 403, "/repos": 403,
		} {
			got, rows := s.answer(d, "ok.test", "GET", "GET "+target+" HTTP/1.1\r\nHost: HOST\r\n\r\n")
			if got.status != status || len(rows) != 1 {
				t.Errorf("%s: %+v %+v", target, got, rows)
			}
		}
	})
}
