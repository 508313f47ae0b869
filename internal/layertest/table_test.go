package layertest

import "slices"

// module is the path that every package of the tree begins with.
const module = "github.com/fractalboxdev/sbx"

// layer is a storey of the tree. A package imports only from lower ones, and
// of its own only values; the table narrows that further.
type layer int

const (
	value   layer = iota // no I/O, no clock
	adapter              // one outside thing each
	story                // knows an order of events
	edge                 // the command line
	tests                // for test files only
)

// place is a package's storey and what it may import of the tree.
type place struct {
	layer layer
	may   []string // for stories and the edge, beside everything below them
}

// table has every package of the tree, below internal/ unless it has a path of
// its own. Names that no package has yet are the plan.
var table = map[string]place{
	"sbx": {value, nil}, // the embedded profiles

	"advisory": {value, nil},
	"class":    {value, nil},
	"coding":   {value, nil},
	"egress":   {value, []string{"coding"}},
	"event":    {value, nil},
	"secret":   {value, nil},
	"ticket":   {value, nil},
	"guard":    {value, nil},
	"floor":    {value, nil},
	"grant":    {value, []string{"class", "egress"}},
	"links":    {value, nil},
	"profile":  {value, []string{"class", "egress", "grant", "sbx"}},
	"report":   {value, []string{"egress", "event", "grant"}},
	"rollout":  {value, []string{"class"}},
	"trap":     {value, nil},
	"verdict":  {value, nil},

	"artifact":       {adapter, []string{"egress", "guard", "event", "report", "secret"}},
	"cgroup":         {adapter, nil},
	"config":         {adapter, []string{"class", "egress", "profile", "secret"}},
	"credential":     {adapter, []string{"egress", "grant", "links", "secret"}},
	"handshake":      {adapter, nil},
	"host":           {adapter, nil},
	"meter":          {adapter, []string{"egress", "event", "secret"}},
	"netns":          {adapter, nil},
	"origin":         {adapter, nil},
	"pki":            {adapter, nil},
	"project":        {adapter, []string{"guard"}},
	"prober":         {adapter, nil},
	"proxy":          {adapter, []string{"coding", "egress", "event", "secret", "trap"}},
	"registry":       {adapter, []string{"egress", "grant", "links"}},
	"remote":         {adapter, nil},
	"resolver":       {adapter, []string{"egress", "event", "trap"}},
	"sandbox":        {adapter, []string{"guard", "sandbox/stage", "class", "ticket", "grant"}},
	"sandbox/notify": {adapter, nil},
	"sandbox/stage":  {adapter, nil},
	"serve":          {adapter, []string{"links"}},
	"sshsig":         {adapter, nil},
	"stdio":          {adapter, []string{"trap"}},
	"store":          {adapter, []string{"event", "floor", "grant", "report", "rollout", "secret", "ticket", "verdict"}},
	"term":           {adapter, []string{"egress", "event", "grant", "report"}},
	"toolchain":      {adapter, nil},
	"trust":          {adapter, nil},
	"upstream":       {adapter, []string{"egress", "trap"}},

	"admission": {story, nil},
	"approval":  {story, nil},
	"canary":    {story, []string{"fence"}},
	"deploy":    {story, []string{"approval", "canary", "fence", "admission"}},
	"detached":  {story, []string{"fence", "workspace"}},
	"dogfood":   {story, []string{"canary", "fence"}},
	"fence":     {story, []string{"admission", "approval"}},
	"preflight": {story, []string{"canary", "fence"}},
	"workspace": {story, []string{"fence"}},

	"cli":     {edge, nil},
	"cmd/sbx": {edge, []string{"cli"}},

	"e2e":       {tests, []string{"egress", "event", "sbxtest"}},
	"layertest": {tests, nil},
	"sbxtest":   {tests, []string{"event"}},
}

// shared is what an adapter may import of another adapter: parts of the same
// outside thing.
var shared = map[string]string{"sandbox": "sandbox/stage"}

// homes says which packages know an outside library. Everything else gets at
// it through them.
var homes = map[string][]string{
	"charm.land/lipgloss":               {"term"},
	"cunicu.li/gont":                    {"sbxtest"},
	"database/sql":                      {"store"},
	"github.com/BurntSushi/toml":        {"config", "profile"},
	"github.com/andybalholm/brotli":     {"coding", "proxy"}, // proxy's tests encode with it
	"github.com/charmbracelet/lipgloss": {"term"},
	"github.com/creack/pty":             {"stdio", "sandbox"},
	"github.com/google/nftables":        {"netns"},
	"github.com/klauspost/compress":     {"coding", "proxy"},
	"github.com/mattn/go-sqlite3":       {"store"},
	"github.com/miekg/dns":              {"resolver", "sbxtest"},
	"github.com/muesli/termenv":         {"term"},
	"github.com/opencontainers/cgroups": {"sandbox", "sandbox/stage"},
	"github.com/opencontainers/runc":    {"sandbox", "sandbox/stage"},
	"github.com/seccomp":                {"sandbox", "sandbox/stage"},
	"github.com/spf13/cobra":            {"cli"},
	"github.com/spf13/pflag":            {"cli"},
	"github.com/vishvananda/netlink":    {"netns", "sbxtest"},
	"golang.org/x/crypto/ssh":           {"sshsig"},
	"golang.org/x/net/publicsuffix":     {"profile"},
	"modernc.org/sqlite":                {"store"},
	"testing":                           {"sbxtest"},
	"github.com/rogpeppe/go-internal":   {},
	"github.com/google/go-cmp":          {},
	"github.com/stretchr/testify":       {},
	"github.com/sirupsen/logrus":        {"sandbox"}, // libcontainer speaks through it; sandbox silences it
	"github.com/pkg/errors":             {},
	"io/ioutil":                         {},
}

// impure is what a value package must not import: the world and the clock's
// consequences live in adapters.
var impure = []string{
	"os", "os/exec", "os/signal", "net", "net/http", "log", "log/slog", "syscall", "database/sql",
	"math/rand", "math/rand/v2", "crypto/rand", "golang.org/x/sys/unix", "golang.org/x/term",
}

// init fills in what stories and the edge may import: everything below them.
func init() {
	for name, at := range table {
		if at.layer != story && at.layer != edge {
			continue
		}
		for below, other := range table {
			if other.layer < at.layer {
				at.may = append(at.may, below)
			}
		}
		slices.Sort(at.may)
		table[name] = at
	}
}
