package io.odradek.s3;

import java.util.regex.Pattern;
import software.amazon.awssdk.core.SdkRequest;
import software.amazon.awssdk.core.interceptor.Context;
import software.amazon.awssdk.core.interceptor.ExecutionAttributes;
import software.amazon.awssdk.core.interceptor.ExecutionInterceptor;
import software.amazon.awssdk.http.SdkHttpRequest;
import software.amazon.awssdk.services.s3.model.CompleteMultipartUploadRequest;
import software.amazon.awssdk.services.s3.model.PutObjectRequest;

/**
 * Makes S3 refuse to replace an object that is written once: a commit of a Delta table, and the
 * offsets and commits of a Spark checkpoint.
 *
 * <p>Delta and Spark look whether the object exists before they write it. Between the two another
 * driver can write it, and would be overwritten. The header makes look and write one: S3 answers
 * 412. S3A runs the interceptor before it signs a request (fs.s3a.audit.execution.interceptors).
 */
public final class PutIfAbsent implements ExecutionInterceptor {
  private static final Pattern WRITTEN_ONCE =
      Pattern.compile("(.*/)?(_delta_log/[0-9]{20}\\.json|(offsets|commits|_put_if_absent)/[0-9]+)");

  @Override
  public SdkHttpRequest modifyHttpRequest(
      Context.ModifyHttpRequest context, ExecutionAttributes attributes) {
    String key = writtenKey(context.request());
    if (key == null || !WRITTEN_ONCE.matcher(key).matches()) {
      return context.httpRequest();
    }
    return context.httpRequest().toBuilder().putHeader("If-None-Match", "*").build();
  }

  private static String writtenKey(SdkRequest request) {
    if (request instanceof PutObjectRequest put) {
      return put.key();
    }
    if (request instanceof CompleteMultipartUploadRequest complete) {
      return complete.key();
    }
    return null;
  }
}
