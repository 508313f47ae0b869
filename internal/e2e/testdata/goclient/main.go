// Goclient asks for each URL of its arguments and prints the status. It is a
// static program that knows no proxy.
package main

import (
	"fmt"
	"net/http"
	"os"
)

func main() {
	client := http.Client{Transport: &http.Transport{Proxy: nil, ForceAttemptHTTP2: true}}
	for _, url := range os.Args[1:] {
		response, err := client.Get(url) //nolint:noctx // it ends with its sandbox
		if err != nil {
			fmt.Println(err)
			continue
		}
		_ = response.Body.Close()
		fmt.Println(response.StatusCode)
	}
}
