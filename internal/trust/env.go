package trust

// EnvVar is one variable of the command's environment.
type EnvVar struct{ Name, Value string }

// Env returns the variables that make programs look at the two files of a Pack,
// at their paths inside. SSL_CERT_DIR stays unset: OpenSSL and Go then read the
// system's directory as well as the file, and miss nothing.
func Env(bundlePath, caPath string) []EnvVar {
	vars := make([]EnvVar, 0, len(bundleVariables)+len(caVariables)+1)
	for _, name := range bundleVariables {
		vars = append(vars, EnvVar{name, bundlePath})
	}
	for _, name := range caVariables {
		vars = append(vars, EnvVar{name, caPath})
	}
	// Deno brings Mozilla's roots along; with this it reads the system bundle too.
	return append(vars, EnvVar{"DENO_TLS_CA_STORE", "system"})
}

// bundleVariables name a file that replaces the roots a program brings along.
var bundleVariables = [...]string{
	"SSL_CERT_FILE",                      // OpenSSL, Go, Python's ssl, Ruby, rustls, uv, .NET
	"CURL_CA_BUNDLE",                     // curl; also read by Python's requests
	"GIT_SSL_CAINFO",                     // git, with GnuTLS too; wins over a repository's http.sslCAInfo
	"REQUESTS_CA_BUNDLE",                 // Python's requests
	"PIP_CERT",                           // pip
	"CARGO_HTTP_CAINFO",                  // cargo
	"AWS_CA_BUNDLE",                      // AWS CLI and SDKs
	"BUNDLE_SSL_CA_CERT",                 // bundler
	"CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", // gcloud
	"NIX_SSL_CERT_FILE",                  // Nix
	"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",   // gRPC core
	"HTTPLIB2_CA_CERTS",                  // Python's httplib2
}

// caVariables name a file that adds to the roots a program brings along. npm
// and yarn do replace theirs with cafile, but compare it with every connection
// they make, so it has to be short; all they reach goes through the proxy.
var caVariables = [...]string{
	"NODE_EXTRA_CA_CERTS",
	"DENO_CERT",
	"npm_config_cafile", // npm, pnpm, yarn 1; wins over a project's .npmrc
	"YARN_HTTPS_CA_FILE_PATH",
}
