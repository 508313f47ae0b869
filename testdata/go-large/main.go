// Command large imports enough that its module has more than fifty dependencies.
package main

import (
	"fmt"

	_ "github.com/gin-gonic/gin"
	_ "github.com/prometheus/client_golang/prometheus/promhttp"
	_ "github.com/spf13/viper"
	_ "go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	_ "go.opentelemetry.io/otel/sdk/trace"
)

func main() { fmt.Println("ok") }
