package toolchain

// tool is a toolchain and how it is brought to make one request. In arguments and
// variables {url} is what it is to ask for or below, and {dir} its directory.
type tool struct {
	name     string
	programs []string // names in PATH, the first that is there
	argv     []string // none: it is only looked for
	env      []string
	files    map[string]string // of its directory, by path
}

// What the requests ask for does not exist, so that nothing is installed or run: that
// they arrive is all that counts.
var tools = []tool{
	{name: "curl", programs: []string{"curl"}, argv: []string{"-sS", "-o", "/dev/null", "{url}"}},
	{name: "wget", programs: []string{"wget"}, argv: []string{"-q", "-t", "1", "-O", "/dev/null", "{url}"}},
	{name: "git", programs: []string{"git"}, argv: []string{"ls-remote", "{url}"}},
	{name: "node", programs: []string{"node"}, argv: []string{"-e", "require('https').get(process.argv[1], r => r.resume())", "{url}"}},
	{name: "npm", programs: []string{"npm"}, argv: []string{"ping", "--registry", "{url}/"}},
	{name: "pnpm", programs: []string{"pnpm"}, argv: []string{"view", "nothing", "--registry", "{url}/"}, files: project},
	{name: "yarn", programs: []string{"yarn"}, argv: []string{"info", "nothing", "--registry", "{url}/"}, files: project},
	{name: "bun", programs: []string{"bun"}, argv: []string{"-e", "await fetch(process.argv.at(-1))", "{url}"}},
	{name: "deno", programs: []string{"deno"}, argv: []string{"eval", "await fetch('{url}')"}},
	{name: "python", programs: []string{"python3", "python"}, argv: []string{"-c", "import sys, urllib.request; urllib.request.urlopen(sys.argv[1])", "{url}"}},
	{name: "pip", programs: []string{"pip3", "pip"}, argv: []string{
		"download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--retries", "0", "-d", "{dir}", "--index-url", "{url}/", "nothing",
	}},
	{name: "uv", programs: []string{"uv"}, argv: []string{"pip", "install", "--no-cache", "--target", "{dir}/to", "--index-url", "{url}/", "nothing"}},
	{name: "go", programs: []string{"go"}, argv: []string{"mod", "download", "nothing.test/x@v1.0.0"}, env: []string{
		"GOPROXY={url}", "GOSUMDB=off", "GONOPROXY=", "GOPRIVATE=", "GOFLAGS=", "GOTOOLCHAIN=local", "GOWORK=off", "GOMODCACHE={dir}/mod", "GOCACHE={dir}/cache", "GOENV=off",
	}},
	{name: "cargo", programs: []string{"cargo"}, argv: []string{"generate-lockfile"}, files: map[string]string{
		"Cargo.toml": "[package]\nname = \"x\"\nversion = \"1.0.0\"\nedition = \"2021\"\n\n[dependencies]\nnothing = { version = \"1\", registry = \"preflight\" }\n",
		"src/lib.rs": "",
	}, env: []string{"CARGO_REGISTRIES_PREFLIGHT_INDEX=sparse+{url}/", "CARGO_HOME={dir}/home"}},
	{name: "ruby", programs: []string{"ruby"}, argv: []string{"-ropen-uri", "-e", "URI.open(ARGV[0]).read", "{url}"}},
	{name: "apt-get", programs: []string{"apt-get"}},
	{name: "java", programs: []string{"java"}},
	{name: "chromium", programs: []string{"chromium", "chromium-browser", "google-chrome"}},
}

// project keeps clients that look for one from looking above their directory.
var project = map[string]string{"package.json": `{"name": "x", "version": "1.0.0", "private": true}`}
