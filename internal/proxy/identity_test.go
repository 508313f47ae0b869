package proxy

import (
	"testing"

	"github.com/fractalboxdev/sbx/internal/egress"
)

func TestBypass24_UnderscoresDoNotHideOverrides(t *testing.T) {
	for name, want := range map[string]kind{
		"X_HTTP_Method_Override": kindOverride, "X_Original_URL": kindOverride, "Transfer_Encoding": kindHop, "X_Api_Key": kindCredential,
		"X-Forwarded-Host": kindOverride, "Forwarded": kindOverride, "X-Custom": kindOther,
	} {
		if got := kindOf(name); got != want {
			t.Errorf("%s is of kind %d, want %d", name, got, want)
		}
	}
	for _, f := range []field{{"X-Custom", "Bearer\tmine"}, {"X_Auth_Token", "x"}, {"X_API_KEY", "x"}, {"X-Pass", "x"}, {"X-Pwd", "x"}} {
		if !identifies(&f) {
			t.Errorf("%s: %q says who asks", f.name, f.value)
		}
	}
	sl := &slot{}
	for _, key := range []string{
		"api.key", "auth.token", "access-token", "private-token", "x-api-key", "personal_access_token", "apikey%00",
		"access%20token", "access+token", "access[token", "access%5Btoken", "access%00token", "access%2etoken", "private%2Dtoken", "x%2dapi%2dkey",
	} {
		if !sl.foreign(key, &egress.Rule{}) {
			t.Errorf("the query key %s says who asks", key)
		}
	}
}
