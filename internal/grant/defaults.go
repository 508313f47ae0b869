package grant

// ClientDefaults returns the variables that every run sets, also one without a
// profile: no client retries, since a refusal is final and the proxy itself
// retries broken upstream connections.
func ClientDefaults() []EnvVar {
	return []EnvVar{
		{"AWS_MAX_ATTEMPTS", "1"},
		{"BUNDLE_RETRY", "0"},
		{"BUN_CONFIG_HTTP_RETRY_COUNT", "0"},
		{"CARGO_NET_RETRY", "0"},
		{"CONDA_REMOTE_MAX_RETRIES", "0"},
		{"PIP_RETRIES", "0"},
		{"POETRY_REQUESTS_MAX_RETRIES", "0"},
		{"RUSTUP_MAX_RETRIES", "0"},
		{"UV_HTTP_RETRIES", "0"},
		{"YARN_HTTP_RETRY", "0"},
		{"npm_config_fetch_retries", "0"},
		{"pnpm_config_fetch_retries", "0"},
	}
}
